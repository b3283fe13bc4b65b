-- watch.lua: has a token woken whenever something changes about the lock, for a while (law: LockTable::watch).
-- ARGV: token.
-- Replies: {'watching', now us}.
-- Why here: the scripts that change something look at this set, by the same clock.

local lock = named()[1]
if type(redis.pcall('ZREMRANGEBYSCORE', lock.WATCH, '-inf', int(ms))) == 'table' then redis.call('DEL', lock.WATCH) end
redis.call('ZADD', lock.WATCH, int(ms + WATCH_KEPT), ARGV[1])
redis.call('PEXPIRE', lock.WATCH, WATCH_KEPT)
return { 'watching', int(us) }
