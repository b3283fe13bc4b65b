-- forget.lua: makes what is wanted once in a while due again, as far as this master remembers.
-- ARGV: none.
-- Replies: {'forgotten', …} · {'nothing', …}: nothing was done.

write_first()
local lock = named()[1]
return answer(redis.call('DEL', key_of('done', lock)) == 1 and 'forgotten' or 'nothing')
