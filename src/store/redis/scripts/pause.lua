-- pause.lua: pauses a lock, or ends the pause (rules: LockTable::pause). Holders keep it.
-- ARGV: operator (JSON; '' ends the pause), for how long ms.
-- Replies: {'paused', now us} · {'open', now us}: what it was before.
-- Why here: the scripts that grant check the pause by the same clock; and when it ends, waiters are
-- granted the lock at once.

write_first()
local lock = named()[1]
expire(lock)
local was = pause_of(lock)
set_pause(lock, ARGV[1], tonumber(ARGV[2]))
grant_next({ lock.rest })
tell()
return { was and 'paused' or 'open', int(us) }
