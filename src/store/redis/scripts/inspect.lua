-- inspect.lua: what the records say of the lock (law: Record::inspect). Writes nothing, so it works on a replica and on
-- a server that is out of memory. An end that no operation has noticed yet is shown as if it had been.
-- ARGV: none. Reply: {'seen', now us, {blocker…}, last fence or '', {owner, since us, owner, since us, …}, {log…}}.
-- Why atomic: holder, queue and log are of one moment.

load()
if lock_until and ms >= lock_until then lock, lock_until = 'free', nil end
local log = redis.call('LRANGE', LOG, 0, LOG_KEPT - 1)
local outcome = unnoticed_end()
if outcome then
  if hold.confirmed and not hold.forced then table.insert(log, 1, entry(outcome)) end
  hold = nil
end
local waiters = {}
for _, token in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  local w = redis.call('HMGET', waiter_key(token), 'silent', 'since', 'owner')
  if w[1] and ms < tonumber(w[1]) then
    waiters[#waiters + 1] = w[3]
    waiters[#waiters + 1] = w[2]
  end
end
return { 'seen', int(us), blocker(), redis.call('GET', FENCE) or '', waiters, log }
