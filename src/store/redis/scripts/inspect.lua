-- inspect.lua: what the records say of the lock (law: Record::inspect). Writes nothing, so it works on a replica and on
-- a server that is out of memory. An end that no operation has noticed yet is shown as if it had been.
-- ARGV: none.
-- Reply: {'seen', now us, state, mode or '', left ms or '', type of a foreign value or '', last fence or '',
--         {holder…, holder…}, {owner, mode, since us, …}, {log…}, {field, total, …}}; a holder: owner, fence, since, until, slot, asked, confirmed.
-- Why atomic: holders, queue and log are of one moment.

local lock = named()[1]
if lock['until'] and ms >= lock['until'] then lock.kind, lock['until'], lock.slots = 'free', nil, nil end
local log = redis.call('LRANGE', lock.LOG, 0, LOG_KEPT - 1)
-- Fields and totals; a field may come more than once, and then they add up (times: the last one counts).
local stat = redis.pcall('HGETALL', lock.STAT)
if stat.err then stat = {} end
local many, live, revoked, recorded, due = is_many(lock), {}, {}, 0, nil
for _, one in ipairs(all_holds(lock)) do
  local hold, borne_out = one.hold, false
  if lock.kind == 'exclusive' then
    borne_out = one.token == lock.token
  elseif lock.kind == 'revoked' then
    borne_out = hold.phase == 'revoked'
  elseif many then
    borne_out = ms < due_of(hold)
  end
  recorded = recorded + 1
  if not borne_out then
    if is_logged(hold) then
      local outcome = outcome_of(hold)
      table.insert(log, 1, entry(hold, outcome))
      local held = math.max(ended_at(hold, outcome) - math.floor(hold.since / 1000), 0)
      for field, n in pairs({ ['held.' .. bucket(held)] = 1, ['held.sum'] = held, ['end.' .. outcome] = 1 }) do
        stat[#stat + 1] = field
        stat[#stat + 1] = int(n)
      end
      stat[#stat + 1] = 'last.' .. outcome
      stat[#stat + 1] = int(ended_at(hold, outcome))
    end
  else
    due = math.max(due or 0, due_of(hold))
    if hold.phase == 'revoked' then revoked[#revoked + 1] = one end
    if hold.phase == 'held' and not (lock.kind == 'exclusive' and ms >= hold['until']) then live[#live + 1] = one end
  end
end
if lock.kind == 'exclusive' and recorded == 0 then live = { { token = lock.token, hold = lock.holds[lock.token] } } end
if many and recorded > 0 and not due then lock.kind, lock['until'], many = 'free', nil, false end

local state, mode, until_ms = lock.kind, 'exclusive', lock['until']
if lock.kind == 'exclusive' then
  state = #live > 0 and 'held' or 'cooling'
elseif many then
  state = (#live > 0 or recorded == 0) and 'held' or #revoked > 0 and 'revoked' or 'cooling'
  mode, until_ms = lock.kind, due or lock['until']
elseif lock.kind == 'free' or lock.kind == 'foreign' then
  mode = ''
end
local left_ms = until_ms and int(left(until_ms)) or ''
if lock.kind == 'foreign' then
  local ttl = redis.call('PTTL', lock.L)
  left_ms = ttl >= 0 and int(ttl) or ''
end

local shown = state == 'held' and live or state == 'revoked' and revoked or {}

local waiters = {}
for _, token in ipairs(redis.call('ZRANGE', lock.QUEUE, 0, -1)) do
  local w = redis.call('HMGET', waiter_key(lock, token), 'silent', 'owner', 'mode', 'since')
  if w[1] and ms < tonumber(w[1]) then
    for i = 2, 4 do waiters[#waiters + 1] = w[i] end
  end
end
return { 'seen', int(us), state, mode, left_ms, lock.foreign_type or '', redis.call('GET', lock.FENCE) or '',
  people(shown),
  waiters, log, stat }
