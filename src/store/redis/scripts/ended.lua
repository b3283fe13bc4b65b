-- ended.lua: how a hold ends, and what is recorded of that: its end in the log, the totals, the last
-- success. A Lua port of src/rules/record/ends.rs. It follows record.lua in every script.

local function ended_at(hold, outcome)
  if outcome == 'expired' then return math.min(ms, hold['until']) end
  return ms
end

-- An end, as it is in the log.
local function entry(hold, outcome, job, by)
  return cjson.encode({ outcome = outcome, owner = hold.owner, fence = hold.fence, waited = hold.waited, job = job,
    since = math.floor(hold.since / 1000), ended = ended_at(hold, outcome), by = by or hold.asked,
    during_pause = hold.during_pause })
end

-- The bucket of a span, as the end of a field's name: the first bucket whose bound is not less.
local function bucket(span_ms)
  for i, bound in ipairs(BOUNDS) do
    if span_ms <= bound then return int(i - 1) end
  end
  return int(#BOUNDS)
end

local function keep_history(lock, span)
  for _, key in ipairs({ lock.STAT, lock.FENCE, key_of('log', lock) }) do redis.call('PEXPIRE', key, span) end
end

-- Adds to the totals. If their key has another type, nothing is counted; nothing else depends on
-- them.
local function tally(lock, counts)
  for field, n in pairs(counts) do redis.pcall('HINCRBY', lock.STAT, field, int(n)) end
  redis.call('PEXPIRE', lock.STAT, HISTORY_KEPT)
  -- Then what shows its last run is kept as long.
  if redis.call('PEXPIRE', key_of('expect', lock), EXPECTED_KEPT) == 1 then keep_history(lock, EXPECTED_KEPT) end
end

-- How often a run is to succeed, and since when one has said so; nil if none has.
local function expected_of(lock)
  local e = object_at(key_of('expect', lock)) or {}
  local every, since = ms_in(e.every), ms_in(e.since)
  return every and since and { every = every, since = since } or nil
end

-- Records what a run expects, if that differs; 0 ends it (rules: LockTable::expect). A server that is
-- out of memory goes on without it, and decides at the write that follows.
local function expect(locks, every)
  for _, lock in ipairs(every and locks or {}) do
    local key, was = key_of('expect', lock), expected_of(lock)
    if every == 0 then
      -- A full server refuses the SET. It would not refuse a DEL, nor then any write behind that.
      local reply = was and redis.pcall('SET', key, '{}')
      if reply and not reply.err then redis.call('DEL', key) end
    elseif not was or was.every ~= every then
      redis.pcall('SET', key, cjson.encode({ every = every, since = was and was.since or ms }), 'PX', EXPECTED_KEPT)
    end
  end
end

-- Marks the grant as confirmed. It counts, and wakes watchers, from now on.
local function confirm(lock, hold)
  hold.confirmed, lock.changed = true, true
  tally(lock, { ['waited.count'] = 1, ['waited.sum'] = hold.waited })
end

local function is_success(outcome, job) return outcome == 'released' and job ~= nil and job.status == 0 end

-- The counts that an end adds to the totals, and the times that it sets. A job that did not end by
-- itself has failed; the result of a script's job is unknown.
local function counted(hold, outcome, job)
  local at = ended_at(hold, outcome)
  local held = math.max(at - math.floor(hold.since / 1000), 0)
  local counts = { ['held.' .. bucket(held)] = 1, ['held.sum'] = held }
  local times = { ['last.' .. outcome] = at }
  if outcome ~= 'released' or job then
    local result = is_success(outcome, job) and 'succeeded' or 'failed'
    counts[result], times['last-job.' .. result] = 1, at
  end
  return counts, times
end

local function tally_end(lock, hold, outcome, job)
  local counts, times = counted(hold, outcome, job)
  tally(lock, counts)
  local fields = {}
  for field, at in pairs(times) do fields[#fields + 1], fields[#fields + 2] = field, int(at) end
  redis.pcall('HSET', lock.STAT, unpack(fields))
end

-- The last successful hold that was acquired with --once-per.
local function success_of(lock)
  local s = object_at(key_of('done', lock)) or {}
  local since, ended = ms_in(s.since), ms_in(s.ended)
  if not (s.owner and number_in(s.fence) and since and ended) then return nil end
  return { owner = s.owner, fence = s.fence, since = since, waited = ms_in(s.waited) or 0, ended = ended }
end

-- Forgets the last success, or what is expected of the lock: then its history is kept as long as that
-- of others. Returns 'forgotten', or 'nothing' if there was none.
local function forget(lock, what)
  if what == 'expected' then keep_history(lock, HISTORY_KEPT) end
  local kind = what == 'expected' and 'expect' or 'done'
  return redis.call('DEL', key_of(kind, lock)) == 1 and 'forgotten' or 'nothing'
end

-- When the run of a success arrived.
local function arrived(success) return math.max(success.since - success.waited, 0) end

-- Neither its arrival nor its grant is earlier than that of the last success, unless that is in the
-- future: the clock was set back since.
local function remember_success(lock, hold)
  local new = { owner = hold.owner, fence = hold.fence, since = math.floor(hold.since / 1000), waited = hold.waited, ended = ms }
  local last = success_of(lock)
  if last and last.since <= ms then
    local latest = math.max(arrived(last), arrived(new))
    if last.since > new.since then new = last end
    new.waited = math.max(new.since - latest, 0)
  end
  redis.call('SET', key_of('done', lock), cjson.encode(new), 'PXAT', int(new.since + ONCE_PER_MOST))
end

-- The success because of which --once-per skips a run that came then (us), as it is in a reply: at
-- the lock that is due first. Nil unless every lock has one (rules: Record::done_for).
local function done(locks, terms, came)
  local first
  if not terms.once_per then return nil end
  for at, lock in ipairs(locks) do
    local success = success_of(lock)
    if not success or success.since >= ms + terms.once_per then return nil end
    local last = math.max(arrived(success) + terms.once_per, success.since)
    if math.floor(came / 1000) >= last then return nil end
    local due = left(last)
    if not first or due < first.due then
      local age = math.max(math.floor(came / 1000) - arrived(success), 0)
      first = { at = at - 1, success = success, ago = math.max(ms - success.since, 0), age = age, due = due }
    end
  end
  return first
end

-- An unconfirmed grant leaves no trace, and an end is logged once.
local function is_logged(hold) return hold.confirmed and hold.phase == 'held' end

-- Removes a hold and logs its end. `counts`: it was acquired with --once-per, so its success counts
-- for the next run.
local function finish(lock, token, outcome, job, by, counts)
  local hold = hold_of(lock, token)
  -- This must be the first write: after it the script is not refused for lack of memory (I14).
  erase(lock, token, hold)
  if is_logged(hold) then
    -- A log key of another type must not keep the lock from being given back.
    local log = key_of('log', lock)
    if type(redis.pcall('LPUSH', log, entry(hold, outcome, job, by))) == 'number' then
      -- Each time, so that a missing permission shows at the first end, not at the 65th.
      redis.call('LTRIM', log, 0, LOG_KEPT - 1)
      redis.call('PEXPIRE', log, HISTORY_KEPT)
    end
    tally_end(lock, hold, outcome, job)
    if counts and is_success(outcome, job) then remember_success(lock, hold) end
  end
end

-- Removes a hold without logging it.
local function drop_hold(lock, token)
  local hold = hold_of(lock, token)
  if hold then erase(lock, token, hold) end
  if lock.kind == 'exclusive' and lock.token == token or lock.kind == 'revoked' then free(lock) else free_if_empty(lock) end
end

-- Ends a hold, but not its min-hold. Returns the rest of that.
local function close(lock, token, outcome, job, counts)
  local hold = hold_of(lock, token)
  finish(lock, token, outcome, job, nil, counts)
  if hold.cool <= ms then
    drop_hold(lock, token)
    return 0
  end
  if lock.kind == 'exclusive' then
    lock.token = nil
    mark(lock, 'cooling', hold.cool)
  else
    hold.phase, hold.owner = 'cooling', {}
    save(lock, token, hold)
  end
  return left(hold.cool)
end

-- The holds that the lock key contradicts, in the order in which they ran out.
local function unconfirmed_end(lock)
  local ended = {}
  if lock.kind == 'exclusive' then return ended end
  if is_many(lock) then
    for _, set in ipairs({ due_key(lock), kept_key(lock) }) do
      local found = redis.call('ZRANGEBYSCORE', set, '-inf', int(ms))
      for _, token in ipairs(found) do
        local hold = hold_of(lock, token)
        if hold then ended[#ended + 1] = { token = token, hold = hold } else redis.call('ZREM', set, token) end
      end
    end
    table.sort(ended, by_due)
    return ended
  end
  for _, one in ipairs(all_holds(lock)) do
    lock.holds[one.token] = one.hold
    if lock.kind ~= 'revoked' or one.hold.phase ~= 'revoked' then ended[#ended + 1] = one end
  end
  return ended
end

local function outcome_of(hold)
  if ms >= due_of(hold) then return 'expired' end
  return 'lost'
end

-- Pauses the lock, without writing it, if the hold whose lease is over says so. Returns whether it did
-- (rules: Record::pause_after_expiry).
local function pause_after_expiry(lock, hold)
  if not (hold.pause_on_failure and hold.renewed and is_logged(hold)) then return false end
  local host = type(hold.owner.host) == 'string' and hold.owner.host or ''
  return pause_after(lock, hold, math.min(hold['until'], ms), hold.pause_on_failure, 'failed on ' .. host .. ': its lease ran out')
end

-- Pauses an exclusive lock whose lease is over while its min-hold is not (rules:
-- Record::pause_while_cooling).
local function pause_while_cooling(lock)
  local hold = lock.kind == 'exclusive' and hold_of(lock, lock.token)
  if not hold or ms < hold['until'] or not (hold.pause_on_failure and hold.renewed) then return end
  if pause_after_expiry(lock, hold) then write_pause(lock) end
  hold.pause_on_failure = nil
  save(lock, lock.token, hold)
end

-- Ends what has run out, and what the lock key contradicts. Once is enough, because time stands
-- still in a script.
local function expire(lock)
  if lock.expired then return end
  lock.expired = true
  if lock['until'] and ms >= lock['until'] then
    local many = is_many(lock)
    free(lock)
    if many then redis.call('DEL', due_key(lock), kept_key(lock)) end
  end
  pause_while_cooling(lock)
  local ended = unconfirmed_end(lock)
  for _, one in ipairs(ended) do
    local outcome = outcome_of(one.hold)
    finish(lock, one.token, outcome)
    if outcome == 'expired' and pause_after_expiry(lock, one.hold) then write_pause(lock) end
  end
  if #ended > 0 then
    if lock.kind == 'free' then redis.call('DEL', lock.HOLD, due_key(lock), kept_key(lock)) end
    free_if_empty(lock)
  end
end
