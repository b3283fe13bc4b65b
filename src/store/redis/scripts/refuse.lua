-- refuse.lua: records a refusal (rules: LockTable::refuse). Does not read the lock.
-- Argument: refusal.
-- Replies: noted.
-- Why here: each of the last ones has the time of the server's clock, and they last as long as the
-- log.

local refused = 'dlock.refused:' .. string.sub(KEYS[2], #'dlock.:' + #RECORD + 1)
local kind = redis.call('TYPE', refused)
if kind.ok ~= 'list' and kind.ok ~= 'none' then redis.call('DEL', refused) end
arg.refusal.at = ms
redis.call('LPUSH', refused, cjson.encode(arg.refusal))
redis.call('LTRIM', refused, 0, LOG_KEPT - 1)
redis.call('PEXPIRE', refused, HISTORY_KEPT)
return answer('noted')
