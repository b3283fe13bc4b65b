-- inspect.lua: the views of locks (rules: Record::inspect). Writes nothing, so it works on a
-- replica and on a server that is out of memory. Ends that no operation has recorded yet are shown
-- as if they were.
-- ARGV: how many of the last ends to return; with 0 also not the last success.
-- Reply: {'seen', now us, {lock…}, …}: the locks in the order of the request, and only as many as a
--        short script can read, at least one. A lock: state, mode or '', left ms or '', type of a
--        foreign value or '', last fence or '', {holder, …}, {owner, mode, since us, '1' if it
--        replaces others, …}, {log…}, {field, total, …}, the last successful hold {owner, fence,
--        since ms, ended ms}, the pause or ''. An empty list is ''. A holder is its record, JSON as
--        in HOLD.
-- Why atomic: holders, queue and log of a lock are of one moment.

-- Limit for one script, because other clients wait meanwhile: 64 locks, each as much as 16 holds,
-- waiters or ends.
local ENOUGH, ENDS = 1024, tonumber(ARGV[1])

-- A server needs four times as long for an empty array as for an empty text.
local function list(all) return all[1] and all or '' end

local function seen(lock)
  local log, stat, live, revoked, recorded, due = look(lock, ENDS)
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
  local left_ms = until_ms and left(until_ms) or ''
  if lock.kind == 'foreign' then
    local ttl = redis.call('PTTL', lock.L)
    left_ms = ttl >= 0 and ttl or ''
  end

  -- Most locks have neither queue nor pause.
  local more = redis.call('EXISTS', key_of('pause', lock), lock.QUEUE) > 0
  local pause = more and pause_of(lock)
  if state == 'free' and pause then state, left_ms = 'paused', left(pause['until']) end

  local shown = state == 'held' and live or state == 'revoked' and revoked or {}

  local waiters = {}
  for _, token in ipairs(more and redis.call('ZRANGE', lock.QUEUE, 0, -1) or waiters) do
    local w = redis.call('HMGET', waiter_key(lock, token), 'silent', 'owner', 'mode', 'since', 'terms')
    if tonumber(w[1]) and w[2] and w[3] and tonumber(w[4]) and ms < silent_at(lock, tonumber(w[1])) then
      for i = 2, 4 do waiters[#waiters + 1] = w[i] end
      waiters[#waiters + 1] = string.find(w[5] or '', 'replaces', 1, true) and '1' or ''
    end
  end
  return { state, mode, left_ms, lock.foreign_type or '', redis.call('GET', lock.FENCE) or '', list(people(shown)),
    list(waiters), list(log), list(stat), ENDS > 0 and list(last_success(lock)) or '', pause and pause.json or '' },
    recorded + #waiters / 4 + #log
end

local reply, told = { 'seen', int(us) }, 0
for i = 1, #KEYS, PARTS do
  local one, weight = seen(lock_at(i))
  reply[#reply + 1] = one
  -- Lua's garbage collector would visit it again and again.
  book = {}
  told = told + 16 + weight
  if told >= ENOUGH then break end
end
return reply
