-- pause.lua: pauses the lock on this master, or ends the pause. Holders keep it.
-- Argument: by, lasts, shortens, as those of a single server's pause.lua.
-- Replies: paused · open: what it was before.

write_first()
local lock = named()[1]
expire(lock)
return answer(set_pause(lock))
