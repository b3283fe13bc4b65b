-- inspect.lua: this master's view of the lock. Writes nothing, so it works on a server that is out
-- of memory. Ends that no operation has recorded yet are shown as if they were.
-- ARGV: longest lease ms.
-- Reply: {'seen', …, {token of the holder, blocker…}, last fence or '', {log…}, {field, total, …},
--        the last successful hold, why this master does not count or '', ms until it does}.
-- Why atomic: holder and log are of one moment.

local lock = named()[1]
local log, stat = look(lock, LOG_KEPT)
local why = unfit(tonumber(ARGV[1])) or {}
return answer('seen', { obstacle(lock) }, redis.call('GET', lock.FENCE) or '', log, stat, last_success(lock), why[1] or '', why[4] or '0')
