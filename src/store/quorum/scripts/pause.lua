-- pause.lua: pauses the lock on this master, or ends the pause. Holders keep it.
-- ARGV: operator (JSON; '' ends the pause), for how long ms.
-- Replies: {'paused', …} · {'open', …}: what it was before.

write_first()
local lock = named()[1]
expire(lock)
local was = pause_of(lock)
set_pause(lock, ARGV[1], tonumber(ARGV[2]))
return answer(was and 'paused' or 'open')
