-- forget.lua: forgets the success that --once-per counts from, on this master.
-- Argument: nothing.
-- Replies: forgotten · nothing: there was none.

write_first()
local lock = named()[1]
expire(lock)
return answer(redis.call('DEL', key_of('done', lock)) == 1 and 'forgotten' or 'nothing')
