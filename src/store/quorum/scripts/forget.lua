-- forget.lua: forgets the success that --once-per counts from, or what is expected of the lock, on this
-- master.
-- Argument: what ('success' or 'expected').
-- Replies: forgotten · nothing: there was none.

write_first()
local lock = named()[1]
expire(lock)
return answer(forget(lock, arg.what))
