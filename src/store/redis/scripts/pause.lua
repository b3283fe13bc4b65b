-- pause.lua: has nobody granted the lock for a while, or ends that (law: LockTable::pause). Who holds it goes on.
-- ARGV: who does it (JSON; '' ends it), for how long ms.
-- Replies: {'paused', now us} · {'open', now us}: what it was before.
-- Why here: the scripts that grant look at it, by the same clock; and who waits is served in the same step when it ends.

write_first()
local lock = named()[1]
expire(lock)
local was = pause_of(lock)
set_pause(lock, ARGV[1], tonumber(ARGV[2]))
serve({ lock.rest })
tell()
return { was and 'paused' or 'open', int(us) }
