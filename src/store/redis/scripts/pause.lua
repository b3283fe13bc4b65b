-- pause.lua: pauses a lock, or ends the pause (rules: LockTable::pause). Holders keep it.
-- Argument: by (the operator), lasts (ms), shortens (whether it may end before the present one); without
--        them the pause ends. Prefix of the lock's name.
-- Replies: paused · open: what it was before.
-- Why here: the scripts that grant check the pause by the same clock; and when it ends, waiters are
-- granted the lock at once.

write_first()
local lock = named()[1]
expire(lock)
local was = set_pause(lock)
grant_next({ lock.rest })
tell()
return answer(was)
