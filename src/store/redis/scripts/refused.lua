-- refused.lua: the last refusals at a lock. Writes nothing.
-- Argument: nothing.
-- Reply: seen {refusals}, newest first, each as the JSON that was recorded.

local refused = redis.pcall('LRANGE', 'dlock.refused:' .. string.sub(KEYS[2], #'dlock.:' + #RECORD + 1), 0, LOG_KEPT - 1)
return answer('seen', { refusals = not refused.err and list(refused) or nil })
