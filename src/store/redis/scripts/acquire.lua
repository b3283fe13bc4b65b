-- acquire.lua: acquire, a waiter's heartbeat, and the confirmation of a grant (rules:
-- LockTable::acquire).
-- Argument: token, ttl, min_hold, owner, mode, patience ('none' or 'queue'), terms {once_per,
--        replaces, not_replaceable, pause_on_failure, during_pause, expect}, waited (how long it has
--        asked), connection (to wake), again (whether it has asked before), has_waited (whether it has
--        had a place in the queue), queue_max (most waiters of a lock), prefix of the locks' names.
--        Times in ms.
-- Replies: granted {fence, waited, slot} · waiting {ahead, next, blocker} · busy {at, queue_full (how
--        many wait, if it is refused because of that), blocker…} · done {at, success, ago, age, due} ·
--        superseded {at, by} · token-ended. `at`: index of the lock, from 0.
-- Why atomic: no other client may come between the check and the grant, a newcomer must not
-- overtake, and of several locks a caller gets all or none.

local token, owner, terms, mode = arg.token, arg.owner, arg.terms, mode_from(arg.mode)

-- A server that is out of memory may refuse a first acquire: no job runs yet.
if arg.again then write_first() end

local function cool_from(since) return arg.min_hold > 0 and math.floor(since / 1000) + arg.min_hold or 0 end

-- The ticket of the caller, and since when it waits; nil if it does not.
local function place_of(locks)
  local ticket, since
  for _, lock in ipairs(locks) do
    local w = object_at(waiter_key(lock, token)) or {}
    if number_in(w.ticket) and number_in(w.since) then ticket, since = w.ticket, w.since end
  end
  return ticket, since
end

-- The index of the first lock whose queue is full. Stale waiters at the end of a full queue are
-- suspended here, because no waiter behind them would do it.
local function full_queue(locks, work)
  for at, lock in ipairs(locks) do
    while redis.call('ZCARD', lock.QUEUE) >= arg.queue_max do
      local last = redis.call('ZREVRANGE', lock.QUEUE, 0, 0)[1]
      if heard(lock, last) then return at end
      suspend(lock, last, work)
    end
  end
end

-- Whether the caller goes before those without --during-pause: all its locks are paused.
local function is_preferred(locks)
  for _, lock in ipairs(locks) do
    if not (terms.during_pause and pause_of(lock)) then return false end
  end
  return true
end

-- Whether it does, and stands in no queue.
local function passes_others(locks) return arg.patience == 'none' and is_preferred(locks) end

-- The first waiter in the queue, if the caller does not go before it.
local function first_of(lock, passes)
  local first, ticket = extreme(lock.QUEUE, 0)
  return not (passes and first and ticket > us - PREFERENCE) and first or nil
end

-- Records a waiter's heartbeat: gives it a ticket, or returns it to its old place.
local function record_heartbeat(locks, came, ticket)
  if not ticket then
    local last = us
    for _, lock in ipairs(locks) do
      local behind = redis.call('ZREVRANGE', lock.QUEUE, 0, 0, 'WITHSCORES')[2]
      if behind then last = math.max(last, behind + 1) end
    end
    ticket = int(last)
    for _, lock in ipairs(locks) do lock.changed = true end
  end
  if is_preferred(locks) and tonumber(ticket) >= came then ticket = int(math.max(ticket - PREFERENCE, 0)) end
  local waiter = cjson.encode({ ticket = ticket, since = int(came), stale_at = ms + SILENCE, mode = mode, names = worklist(locks),
    owner = owner, terms = terms, connection = arg.connection })
  for _, lock in ipairs(locks) do
    write_absence(lock, ms)
    redis.call('SET', waiter_key(lock, token), waiter, 'PX', TICKET_KEPT)
    redis.call('ZADD', lock.QUEUE, ticket, token)
    redis.call('PEXPIRE', lock.QUEUE, TICKET_KEPT)
  end
end

-- Suspends the stale waiters directly before this one; else nobody would notice them before they
-- are the head.
local function suspend_stale_before(locks, work)
  for _, lock in ipairs(locks) do
    while true do
      local rank = redis.call('ZRANK', lock.QUEUE, token)
      if not rank or rank == 0 then break end
      local before = redis.call('ZRANGE', lock.QUEUE, rank - 1, rank - 1)[1]
      if heard(lock, before) then break end
      suspend(lock, before, work)
    end
  end
end

-- How many waiters are before it (the most in any of its queues), and when it should ask again.
local function place(locks)
  local most, next = 0, HEARTBEAT
  for _, lock in ipairs(locks) do
    local rank = redis.call('ZRANK', lock.QUEUE, token) or 0
    most = math.max(most, rank)
    if rank > 0 then
      local before = redis.call('ZRANGE', lock.QUEUE, rank - 1, rank - 1)[1]
      local w = waiter_of(lock, before)
      next = math.min(next, w and left(stale_at(lock, w.stale_at)) or 0)
    elseif lock.kind == 'foreign' then
      next = math.min(next, FOREIGN_LOOK)
    -- A lock that admits the waiter may lack a slot in common with its other locks.
    elseif lock.slots or not admits(lock, mode, terms) then
      next = math.min(next, blocker(lock, mode).left)
    end
  end
  return most, next
end

-- What blocks the caller, at the first lock that does not admit it or has other waiters; if there
-- is none, at the first lock.
local function first_blocker(locks)
  local at, before, passes = 1, nil, passes_others(locks)
  for i = #locks, 1, -1 do
    local head, admitted = first_of(locks[i], passes), admits(locks[i], mode, terms)
    if not admitted or head and head ~= token then at, before = i, admitted and head end
  end
  local b = blocker(locks[at], mode)
  local w = before and waiter_of(locks[at], before)
  b.at, b.before = at - 1, w and w.owner or nil
  return terms.during_pause and without_pause(b) or b
end

local function busy(locks, b)
  local lock = locks[b.at + 1]
  lock.changed = true
  tally(lock, { busy = 1 })
  tell()
  return answer('busy', b)
end

-- The token's hold, if the lock has one by its kind.
local function recorded(lock, token)
  if lock.kind == 'exclusive' and lock.token ~= token or lock.kind == 'free' then return nil end
  return hold_of(lock, token)
end

local function granted(hold) return answer('granted', { fence = hold.fence, waited = hold.waited, slot = hold.slot }) end

-- Takes a waiter out of these queues for good. `news` collects the locks that have a new head.
local function remove(locks, waiter, news)
  for _, lock in ipairs(locks) do
    if redis.call('ZRANK', lock.QUEUE, waiter) == 0 then news[#news + 1] = lock end
    redis.call('ZREM', lock.QUEUE, waiter)
    redis.call('DEL', waiter_key(lock, waiter))
  end
end

-- Answers 'done' if --once-per skips this run, and takes the caller out of its queues.
local function skip_if_done(locks, came)
  local was, news = done(locks, terms, came), {}
  if not was then return nil end
  remove(locks, token, news)
  local lock = locks[was.at + 1]
  lock.changed = true
  tally(lock, { done = 1 })
  grant_next(worklist(locks), token)
  for _, lock in ipairs(news) do wake_head(lock) end
  tell()
  return answer('done', was)
end

-- The caller holds the locks, and asks because it has no answer yet: the run may have arrived before
-- the request that was granted (rules: LockTable::date_back).
local function date_back(locks, came)
  if arg.has_waited then return nil end
  local came_ms, is_earlier = math.floor(came / 1000), false
  local function gone(hold) return math.floor(hold.since / 1000) - came_ms end
  for _, lock in ipairs(locks) do
    local hold = hold_of(lock, token)
    is_earlier = is_earlier or (tonumber(hold.since) <= us and hold.waited + ARRIVAL_SLACK < gone(hold))
  end
  if not is_earlier then return nil end
  if done(locks, terms, came) then
    for _, lock in ipairs(locks) do drop_hold(lock, token) end
    return skip_if_done(locks, came)
  end
  for _, lock in ipairs(locks) do
    local hold = hold_of(lock, token)
    hold.waited = math.max(hold.waited, gone(hold))
  end
end

local function mark_superseded(lock, whom)
  lock.changed = true
  tally(lock, { superseded = 1 })
  spend(lock, whom, 's')
end

-- The newest run with --replace wins. If a newer one than the caller has come, the caller is
-- superseded, and the answer is returned. Otherwise the caller becomes the newest, and supersedes
-- the one before it if that still waits or has not confirmed its grant.
local function supersede(locks, came, work, news)
  for at, lock in ipairs(locks) do
    local newest = superseded_by(lock, token, came)
    if newest then
      remove(locks, token, news)
      mark_superseded(lock, token)
      return answer('superseded', { at = at - 1, by = newest.owner })
    end
  end
  for _, lock in ipairs(locks) do
    local old = be_newest(lock, token, came, owner)
    local w = old and waiter_of(lock, old.token)
    if w and w.terms.replaces then
      local others = opened(w.names)
      remove(others, old.token, news)
      for _, other in ipairs(others) do
        expire(other)
        local hold = recorded(other, old.token)
        if hold and not hold.confirmed then drop_hold(other, old.token) end
        work[#work + 1] = other.rest
      end
      mark_superseded(lock, old.token)
      wake(w.names[1], old.token, w.connection)
    end
  end
end

-- Asks the holders to end, except those with --no-replace. While a lock is paused none is asked for
-- a run that may not run then.
local function replace(locks, came)
  for _, lock in ipairs(locks) do
    if (lock.kind == 'exclusive' or is_many(lock)) and (terms.during_pause or not pause_of(lock)) then
      for _, one in ipairs(all_holds(lock)) do
        if is_replaced(one.hold, came) and is_held_by(lock, one.token) then
          one.hold.asked, one.hold.superseded = owner, true
          save(lock, one.token, one.hold)
          wake(lock.rest, one.token, 'holder')
        end
      end
    end
  end
end

local locks = named(token)
local spent, alone = {}, not terms.replaces
for i, lock in ipairs(locks) do spent[i] = spent_key(lock, token) end
if redis.call('EXISTS', unpack(spent)) > 0 then
  for at, lock in ipairs(locks) do
    if redis.call('GET', spent[at]) == 's' then
      local newest = newest_of(lock)
      return answer('superseded', { at = at - 1, by = newest and newest.owner or {} })
    end
  end
  return answer('token-ended')
end
for _, lock in ipairs(locks) do expire(lock) end
for _, lock in ipairs(locks) do
  alone = alone and lock.kind == 'free' and
    redis.call('EXISTS', lock.QUEUE, waiter_key(lock, token), key_of('pause', lock)) == 0
end

-- When it came, if it has no place.
local came = math.max(us - arg.waited * 1000, 0)

-- Without waiters the way through the queue would lead to the same grant, with twice the commands.
if alone then
  expect(locks, terms.expect)
  local skipped = skip_if_done(locks, came)
  if skipped then return skipped end
  local hold = { slot = slot_for(locks, mode), ['until'] = ms + arg.ttl, cool = cool_from(us), confirmed = true,
    waited = gone_by(came), owner = owner, not_replaceable = terms.not_replaceable, pause_on_failure = terms.pause_on_failure }
  grant(locks, mode, token, hold)
  for _, lock in ipairs(locks) do confirm(lock, hold) end
  tell()
  return granted(hold)
end

local news = {}
if not held_everywhere(locks, token) then
  -- A hold that was revoked or has lost one of its locks is over, and its token is good only for
  -- leave. An unconfirmed grant that has lost a lock is dropped, and its token may acquire again.
  for _, lock in ipairs(locks) do
    local hold = recorded(lock, token)
    if hold and hold.confirmed then return answer('token-ended') end
  end
  for _, lock in ipairs(locks) do
    if recorded(lock, token) then drop_hold(lock, token) end
  end
  local work, ticket, since = worklist(locks), place_of(locks)
  since = tonumber(since)
  if since and (arg.has_waited or math.floor(came / 1000) + ARRIVAL_SLACK >= math.floor(since / 1000)) then came = since end
  -- Not with each heartbeat: two waiters that expect different things would write in turn.
  if not ticket then expect(locks, terms.expect) end
  local skipped = skip_if_done(locks, came)
  if skipped then return skipped end
  local full = arg.patience == 'queue' and not ticket and not arg.has_waited and full_queue(locks, work)
  if full then
    grant_next(work, token)
    local b = blocker(locks[full], mode)
    b.at, b.queue_full = full - 1, arg.queue_max
    return busy(locks, b)
  end
  local superseded = terms.replaces and supersede(locks, came, work, news)
  if not superseded and arg.patience == 'queue' then
    record_heartbeat(locks, came, ticket)
    suspend_stale_before(locks, work)
  end
  grant_next(work, token)
  if superseded then
    for _, lock in ipairs(news) do wake_head(lock) end
    tell()
    return superseded
  end
  local admitted, passes = not held_everywhere(locks, token), passes_others(locks)
  for _, lock in ipairs(locks) do
    admitted = admitted and admits(lock, mode, terms) and not first_of(lock, passes)
  end
  local slot
  if admitted then slot = slot_for(locks, mode) end
  if slot ~= nil then
    grant(locks, mode, token, { slot = slot, ['until'] = ms + CONFIRM_WITHIN, cool = 0, confirmed = false,
      waited = gone_by(came), owner = owner, not_replaceable = terms.not_replaceable, pause_on_failure = terms.pause_on_failure,
      during_pause = terms.during_pause })
  end
  if terms.replaces and not held_everywhere(locks, token) then replace(locks, came) end
  for _, lock in ipairs(news) do wake_head(lock) end
else
  local skipped = date_back(locks, came)
  if skipped then return skipped end
  -- The operation before may have stopped at GRANTED_AT_ONCE.
  if mode ~= 'exclusive' then grant_next(worklist(locks), token) end
end
if held_everywhere(locks, token) then
  local hold, fence = nil, '0'
  -- The record of one lock may have been evicted, and its fence be a later one.
  for _, lock in ipairs(locks) do
    local own = hold_of(lock, token).fence
    if number_in(own) > number_in(fence) then fence = own end
  end
  expect(locks, terms.expect)
  for _, lock in ipairs(locks) do
    redis.call('ZREM', lock.QUEUE, token)
    redis.call('DEL', waiter_key(lock, token))
    hold = hold_of(lock, token)
    if not hold.confirmed then confirm(lock, hold) end
    hold.fence, hold.owner, hold['until'] = fence, owner, ms + arg.ttl
    -- An older dlock may have granted it, which does not know --pause-on-failure.
    hold.pause_on_failure = terms.pause_on_failure
    if arg.min_hold > 0 then hold.cool = cool_from(hold.since) end
    save(lock, token, hold)
  end
  tell()
  return granted(hold)
end
local b = first_blocker(locks)
if arg.patience == 'none' then return busy(locks, b) end
tell()
local ahead, next = place(locks)
return answer('waiting', { ahead = ahead, next = next, blocker = b })
