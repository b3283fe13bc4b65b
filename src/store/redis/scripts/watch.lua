-- watch.lua: has a token woken at every change of the lock, for WATCH_KEPT (rules:
-- LockTable::watch).
-- Argument: token.
-- Replies: watching.
-- Why here: the scripts that change something read this set, by the same clock.

local lock = named()[1]
local WATCH = key_of('watch', lock)
if type(redis.pcall('ZREMRANGEBYSCORE', WATCH, '-inf', int(ms))) == 'table' then redis.call('DEL', WATCH) end
redis.call('ZADD', WATCH, int(ms + WATCH_KEPT), arg.token)
redis.call('PEXPIRE', WATCH, WATCH_KEPT)
return answer('watching')
