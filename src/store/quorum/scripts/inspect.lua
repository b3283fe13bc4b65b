-- inspect.lua: what this master's records say of the lock. Writes nothing, so it works on a server that is out of
-- memory. An end that no operation has noticed yet is shown as if it had been.
-- ARGV: longest lease ms.
-- Reply: {'seen', …, {whose, blocker…}, last fence or '', {log…}, {field, total, …}, the last hold that succeeded, why it does not count or '',
--         ms until it does}.
-- Why atomic: holder and log are of one moment.

local lock = named()[1]
local log, stat = look(lock, LOG_KEPT)
local why = unfit(tonumber(ARGV[1])) or {}
return answer('seen', { obstacle(lock) }, redis.call('GET', lock.FENCE) or '', log, stat, last_success(lock), why[1] or '', why[4] or '0')
