-- refused.lua: the last refusals at a lock. Writes nothing.
-- Reply: {'seen', now us, {refusal, …}}, newest first, each as the time in ms, a space, and the
--        JSON that was recorded.

local refused = redis.pcall('LRANGE', 'dlock.refused:' .. string.sub(KEYS[2], #'dlock.:' + #RECORD + 1), 0, LOG_KEPT - 1)
return answer('seen', refused.err and {} or refused)
