-- inspect.lua: what this master's records say of the lock. Writes nothing, so it works on a server that is out of
-- memory. An end that no operation has noticed yet is shown as if it had been.
-- ARGV: longest lease ms. Reply: {'seen', …, {blocker…}, last fence or '', {log…}, {field, total, …}, why it does not count or '', ms until it does}.
-- Why atomic: holder and log are of one moment.

load()
if lock_until and ms >= lock_until then lock, lock_until = 'free', nil end
local log = redis.call('LRANGE', LOG, 0, LOG_KEPT - 1)
-- Fields and totals; a field may come more than once, and then they add up (times: the last one counts).
local stat = redis.pcall('HGETALL', STAT)
if stat.err then stat = {} end
local why = unfit(tonumber(ARGV[1])) or {}
local outcome = unnoticed_end()
if outcome then
  if hold.confirmed and not hold.forced then
    table.insert(log, 1, entry(outcome))
    local held = math.max(ended_at(outcome) - math.floor(hold.since / 1000), 0)
    for field, n in pairs({ ['held.' .. bucket(held)] = 1, ['held.sum'] = held, ['end.' .. outcome] = 1 }) do
      stat[#stat + 1] = field
      stat[#stat + 1] = int(n)
    end
    stat[#stat + 1] = 'last.' .. outcome
    stat[#stat + 1] = int(ended_at(outcome))
  end
  hold = nil
end
return answer('seen', blocker(), redis.call('GET', FENCE) or '', log, stat, why[1] or '', why[4] or '0')
