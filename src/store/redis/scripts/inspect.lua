-- inspect.lua: what the records say of the lock (law: Record::inspect). Writes nothing, so it works on a replica and on
-- a server that is out of memory. An end that no operation has noticed yet is shown as if it had been.
-- ARGV: none.
-- Reply: {'seen', now us, state, mode or '', left ms or '', type of a foreign value or '', last fence or '',
--         {holder…, holder…}, {owner, mode, since us, '1' if it replaces others, …}, {log…}, {field, total, …},
--         the last hold that succeeded: {owner, fence, since ms, ended ms} or {}, the pause or ''}; a holder: owner, fence, since, until, slot, asked, confirmed, word.
-- Why atomic: holders, queue and log are of one moment.

local lock = named()[1]
local log, stat, live, revoked, recorded, due = look(lock)
local many = is_many(lock)
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

local pause = pause_of(lock)
if state == 'free' and pause then state, left_ms = 'paused', int(left(pause['until'])) end

local shown = state == 'held' and live or state == 'revoked' and revoked or {}

local waiters = {}
for _, token in ipairs(redis.call('ZRANGE', lock.QUEUE, 0, -1)) do
  local w = redis.call('HMGET', waiter_key(lock, token), 'silent', 'owner', 'mode', 'since', 'terms')
  if tonumber(w[1]) and w[2] and w[3] and tonumber(w[4]) and ms < silent_at(lock, tonumber(w[1])) then
    for i = 2, 4 do waiters[#waiters + 1] = w[i] end
    waiters[#waiters + 1] = string.find(w[5] or '', 'replaces', 1, true) and '1' or ''
  end
end
return { 'seen', int(us), state, mode, left_ms, lock.foreign_type or '', redis.call('GET', lock.FENCE) or '',
  people(shown), waiters, log, stat, last_success(lock), pause and pause.json or '' }
