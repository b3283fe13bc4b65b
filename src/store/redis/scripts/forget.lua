-- forget.lua: forgets the success that --once-per counts from, so that the job is due again (rules:
-- LockTable::forget_success), or what is expected of the lock (LockTable::retire).
-- Argument: what ('success' or 'expected'), prefix of the lock's name.
-- Replies: forgotten · nothing: there was none.
-- Why here: waiters may be next from now on, and are granted the lock at once.

write_first()
local lock = named()[1]
expire(lock)
local was = forget(lock, arg.what)
grant_next({ lock.rest })
tell()
return answer(was)
