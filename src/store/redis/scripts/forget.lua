-- forget.lua: makes what is wanted once in a while due again (law: LockTable::forget_success).
-- ARGV: none.
-- Replies: {'forgotten', now us} · {'nothing', now us}: nothing was done.
-- Why here: who waits may be entitled from now on, and is served in the same step.

write_first()
local lock = named()[1]
expire(lock)
local was = redis.call('DEL', key_of('done', lock))
serve({ lock.rest })
tell()
return { was == 1 and 'forgotten' or 'nothing', int(us) }
