-- forget.lua: forgets the success that --once-per counts from, so that the job is due again (rules:
-- LockTable::forget_success).
-- ARGV: none.
-- Replies: {'forgotten', now us} · {'nothing', now us}: there was none.
-- Why here: waiters may be next from now on, and are granted the lock at once.

write_first()
local lock = named()[1]
expire(lock)
local was = redis.call('DEL', key_of('done', lock))
grant_next({ lock.rest })
tell()
return { was == 1 and 'forgotten' or 'nothing', int(us) }
