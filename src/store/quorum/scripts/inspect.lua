-- inspect.lua: what this master's records say of the lock. Writes nothing, so it works on a server that is out of
-- memory. An end that no operation has noticed yet is shown as if it had been.
-- ARGV: none. Reply: {'seen', …, {blocker…}, last fence or '', {log…}}.
-- Why atomic: holder and log are of one moment.

load()
if lock_until and ms >= lock_until then lock, lock_until = 'free', nil end
local log = redis.call('LRANGE', LOG, 0, LOG_KEPT - 1)
local outcome = unnoticed_end()
if outcome then
  if hold.confirmed and not hold.forced then table.insert(log, 1, entry(outcome)) end
  hold = nil
end
return answer('seen', blocker(), redis.call('GET', FENCE) or '', log)
