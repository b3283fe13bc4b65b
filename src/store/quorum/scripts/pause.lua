-- pause.lua: has this master granted to nobody for a while, or ends that. Who has it goes on.
-- ARGV: who does it (JSON; '' ends it), for how long ms.
-- Replies: {'paused', …} · {'open', …}: what it was before.

write_first()
local lock = named()[1]
expire(lock)
local was = pause_of(lock)
set_pause(lock, ARGV[1], tonumber(ARGV[2]))
return answer(was and 'paused' or 'open')
