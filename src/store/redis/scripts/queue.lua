-- queue.lua: the second part of each script that changes something on a single server: the queue,
-- and `grant_next`, which each of them runs at its end. A Lua port of src/rules/queue.rs and
-- src/rules/grant.rs, with mostly the same names. record.lua describes the keys.
--
-- Why in the same script: the decision, the next grant and its wake are one atomic operation (I3,
-- I9).

local function gone_by(since_us) return math.max(ms - math.floor(since_us / 1000), 0) end

-- Whether one more may hold it in this mode, regardless of queue and pause. If the lock key says
-- that several hold the lock and no hold is recorded, the server has lost the holds: nobody is
-- admitted before the key itself expires.
local function has_room(lock, mode)
  if lock.kind == 'free' then return true end
  if lock.kind ~= mode or not is_many(lock) then return false end
  return count(lock) > 0 and (not lock.slots or count(lock) < lock.slots)
end

local function admits(lock, mode, terms) return has_room(lock, mode) and (terms.during_pause or not pause_of(lock)) end

local function has_room_for_some(lock) return lock.kind == 'free' or has_room(lock, lock.kind) end

-- The lowest slot that is free in all of the locks; nil if there is none, false if the mode has no
-- slots.
local function slot_for(locks, mode)
  local slots = slots_of(mode)
  if not slots then return false end
  local fields = {}
  for slot = 0, slots - 1 do fields[slot + 1] = '#' .. int(slot) end
  local taken = {}
  for _, lock in ipairs(locks) do
    if lock.slots then
      local holders, known = redis.call('HMGET', lock.HOLD, unpack(fields)), false
      for i = 1, slots do
        taken[i] = taken[i] or holders[i]
        known = known or holders[i]
      end
      -- An eviction has removed the slots of the holders: as in `admits`, nobody may be admitted.
      if not known then return nil end
    end
  end
  for i = 1, slots do
    if not taken[i] then return i - 1 end
  end
  return nil
end

-- Grants all of these locks under one fence, greater than every earlier one of each. `hold` has
-- what is particular to this grant.
local function grant(locks, mode, token, hold)
  local fence = us
  for _, lock in ipairs(locks) do fence = math.max(fence, last_fence(lock) + 1) end
  hold.phase, hold.fence, hold.since = 'held', int(fence), int(us)
  hold.slot = hold.slot or nil
  for _, lock in ipairs(locks) do
    write_fence(lock, fence)
    if lock.kind == 'free' then
      -- The rest of earlier, partly evicted holds must not count.
      if mode ~= 'exclusive' then redis.call('DEL', lock.HOLD, due_key(lock), kept_key(lock)) end
      lock.kind, lock['until'], lock.count = mode, nil, nil
      lock.slots = slots_of(mode)
      if mode == 'exclusive' then lock.token = token end
    end
    lock.changed = true
    local own = {}
    for field, value in pairs(hold) do own[field] = value end
    own.during_pause = hold.during_pause and pause_of(lock) and true or nil
    save(lock, token, own)
  end
end

local function wake(first, token, connection)
  if not connection then return end
  local key = 'dlock.wake:' .. first .. ':' .. token .. ':' .. connection
  redis.call('LPUSH', key, '1')
  redis.call('PEXPIRE', key, 2 * SILENCE)
end

-- Whether this is the rest of a lock that the caller could have named: no script follows a name
-- elsewhere.
local function is_rest(rest)
  local tag, full = string.match(type(rest) == 'string' and rest or '', '^{([^}]*)}:(.+)$')
  if not tag or string.sub(full, 1, #arg.prefix) ~= arg.prefix or string.sub(full, 1, 6) == 'dlock.' then return false end
  local own = string.match(full, '{([^}]*)}')
  return tag == (own and own ~= '' and own or full)
end

-- The record of a waiter; nil if it is not valid. Other programs may write there, too.
local function waiter_of(lock, token)
  local w = object_at(waiter_key(lock, token))
  if not w or type(w.names) ~= 'table' or type(w.owner) ~= 'table' or type(w.terms) ~= 'table' then return nil end
  w.since, w.stale_at, w.connection = number_in(w.since), number_in(w.stale_at), number_in(w.connection)
  w.terms.once_per, w.terms.pause_on_failure = number_in(w.terms.once_per), ms_in(w.terms.pause_on_failure)
  w.terms.during_pause = w.terms.during_pause == true
  local is_mode = w.mode == 'exclusive' or w.mode == 'shared' or slots_of(w.mode)
  local waits_here = false
  for _, rest in ipairs(w.names) do
    if not is_rest(rest) then return nil end
    waits_here = waits_here or rest == lock.rest
  end
  return waits_here and is_mode and w.since and w.stale_at and w or nil
end

-- Wakes the head, because the lock will be free earlier than it knows, or because it has just
-- become the head.
local function wake_head(lock)
  local head = redis.call('ZRANGE', lock.QUEUE, 0, 0)[1]
  local w = head and waiter_of(lock, head)
  if w then wake(w.names[1], head, w.connection) end
end

-- Writes down that a gap was noticed; else dead waiters would be excused again and again.
local function write_absence(lock, last)
  local a = absence(lock)
  a.is_news = false
  local heard = cjson.encode({ last = last, from = a.from, back = a.back, before = a.before })
  redis.call('SET', key_of('heard', lock), heard, 'PX', TICKET_KEPT)
end

-- The record of a waiter, if it is not stale.
local function heard(lock, token)
  if absence(lock).is_news then write_absence(lock, lock.absence.last) end
  local w = waiter_of(lock, token)
  return w and stale_at(lock, w.stale_at) > ms and w or nil
end

-- Takes a waiter out of all its queues, and retains its ticket. Its other locks go on the worklist.
local function suspend(lock, token, work)
  lock.changed = true
  redis.call('ZREM', lock.QUEUE, token)
  local w = waiter_of(lock, token)
  for _, rest in ipairs(w and w.names or {}) do
    if rest ~= lock.rest then
      redis.call('ZREM', open(rest).QUEUE, token)
      work[#work + 1] = rest
    end
  end
end

local function opened(names)
  local locks = {}
  for i, rest in ipairs(names) do locks[i] = open(rest) end
  return locks
end

-- The first waiter in the queue that is not stale, and its record. Suspends the stale ones before
-- it.
local function head_of(lock, work)
  while true do
    local head = redis.call('ZRANGE', lock.QUEUE, 0, 0)[1]
    local w = head and heard(lock, head)
    if w or not head then return head, w end
    suspend(lock, head, work)
  end
end

-- Whether the head of a queue has an earlier ticket.
local function is_before(lock, token, ticket)
  local head, its_ticket = extreme(lock.QUEUE, 0)
  return its_ticket < ticket or its_ticket == ticket and head < token
end

-- Grants the head of one queue its locks, if it is the head of all its queues and all its locks
-- admit it. Returns whether it left the queue.
local function grant_head(at, token, w, work, caller)
  local mode, names, locks = w.mode, w.names, {}
  if w.terms.once_per and done(opened(names), w.terms, w.since) then
    -- The job is done already; the waiter learns that when it asks. Until then it keeps its ticket,
    -- because the success may be forgotten before.
    suspend(at, token, work)
    if token ~= caller then wake(names[1], token, w.connection) end
    return true
  end
  local ticket
  for _, rest in ipairs(names) do
    local lock = open(rest)
    if lock ~= at then
      -- Before the other queue is read: a stale waiter there is taken out of both.
      ticket = ticket or select(2, extreme(at.QUEUE, 0))
      expire(lock)
      local first = head_of(lock, work)
      if first ~= token then
        -- Go on only to an earlier ticket, so that this ends. If this waiter's place in that queue
        -- was lost, it is never the first there, and two such waiters would send each other round.
        if first and is_before(lock, token, ticket) then work[#work + 1] = rest end
        return false
      end
    end
    if not admits(lock, mode, w.terms) then return false end
    locks[#locks + 1] = lock
  end
  local slot = slot_for(locks, mode)
  if slot == nil then return false end
  for _, lock in ipairs(locks) do
    redis.call('ZREM', lock.QUEUE, token)
    if lock ~= at then work[#work + 1] = lock.rest end
  end
  grant(locks, mode, token, { slot = slot, ['until'] = ms + CONFIRM_WITHIN, cool = 0, confirmed = false,
    waited = gone_by(w.since), owner = w.owner, not_replaceable = w.terms.not_replaceable,
    pause_on_failure = w.terms.pause_on_failure, during_pause = w.terms.during_pause })
  if token ~= caller then wake(names[1], token, w.connection) end
  return true
end

-- Whether this operation has granted one of the waiter's locks so often that the next operation
-- must go on.
local function is_enough(w)
  for _, rest in ipairs(w.names) do
    local lock = book[rest]
    if lock and (lock.granted_here or 0) >= GRANTED_AT_ONCE then return true end
  end
  return false
end

-- Suspends stale waiters at the head, and grants the locks to the waiters that are next. `caller`
-- needs no wake.
local function grant_next(work, caller)
  local i = 1
  while work[i] do
    local lock = open(work[i])
    expire(lock)
    while has_room_for_some(lock) do
      local head, w = head_of(lock, work)
      if not head or is_enough(w) or not grant_head(lock, head, w, work, caller) then break end
      for _, rest in ipairs(w.names) do book[rest].granted_here = (book[rest].granted_here or 0) + 1 end
    end
    i = i + 1
  end
end

local function worklist(locks)
  local work = {}
  for i, lock in ipairs(locks) do work[i] = lock.rest end
  return work
end

-- Runs at the end of every script that changes something: wakes the watchers of the locks that
-- changed.
local function tell()
  for rest, lock in pairs(book) do
    if lock.changed then
      -- Nothing depends on another program's value here.
      local watchers = redis.pcall('ZRANGEBYSCORE', key_of('watch', lock), '(' .. int(ms), '+inf')
      for _, token in ipairs(watchers) do
        wake(rest, token, 'watch')
        -- One element is enough, also for a watcher that reads seldom.
        redis.call('LTRIM', 'dlock.wake:' .. rest .. ':' .. token .. ':watch', 0, 0)
      end
    end
  end
end
