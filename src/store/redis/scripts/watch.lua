-- watch.lua: has a token woken at every change of the lock, for WATCH_KEPT (rules:
-- LockTable::watch).
-- ARGV: token.
-- Replies: {'watching', now us}.
-- Why here: the scripts that change something read this set, by the same clock.

local lock = named()[1]
local WATCH = key_of('watch', lock)
if type(redis.pcall('ZREMRANGEBYSCORE', WATCH, '-inf', int(ms))) == 'table' then redis.call('DEL', WATCH) end
redis.call('ZADD', WATCH, int(ms + WATCH_KEPT), ARGV[1])
redis.call('PEXPIRE', WATCH, WATCH_KEPT)
return { 'watching', int(us) }
