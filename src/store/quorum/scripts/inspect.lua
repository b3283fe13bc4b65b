-- inspect.lua: this master's view of the lock. Writes nothing, so it works on a server that is out
-- of memory. Ends that no operation has recorded yet are shown as if they were.
-- Argument: nothing.
-- Reply: seen {seen, as in acquire.lua; fence, log, stat, success, expected, as in a single server's
--        inspect.lua; unfit, counts_in (ms): why this master does not count}.
-- Why atomic: holder and log are of one moment.

local lock = named()[1]
local log, stat = look(lock, LOG_KEPT)
local why, counts_in = unfit()
local fence = number_in(redis.call('GET', lock.FENCE))
return answer('seen', { seen = obstacle(lock), fence = fence and int(fence), log = list(log), stat = stat,
  success = success_of(lock), expected = expected_of(lock), unfit = why, counts_in = counts_in })
