-- forget.lua: forgets the success that --once-per counts from, so that the job is due again (rules:
-- LockTable::forget_success).
-- Argument: prefix of the lock's name.
-- Replies: forgotten · nothing: there was none.
-- Why here: waiters may be next from now on, and are granted the lock at once.

write_first()
local lock = named()[1]
expire(lock)
local was = redis.call('DEL', key_of('done', lock))
grant_next({ lock.rest })
tell()
return answer(was == 1 and 'forgotten' or 'nothing')
