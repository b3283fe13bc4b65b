-- lock.lua: what every script starts with. The record of one lock as it lies in Redis, and `settle`, the step that
-- every operation that changes something ends with. The twin of src/law.rs; the names are the same there.
-- Its constants (SILENCE, CONFIRM_WITHIN, HEARTBEAT, TICKET_KEPT, SPENT_KEPT, FOREIGN_LOOK, LOG_KEPT, HISTORY_KEPT, in
-- ms) are put in front of it from src/law.rs.
--
-- KEYS[1] L, the lock key       STRING  the holder's token, or a marker dlock/cooling:<until>, dlock/revoked:<until>
-- KEYS[2] dlock.hold:{tag}:L    HASH    the holder: token fence since until cool confirmed forced waited owner
-- KEYS[3] dlock.queue:{tag}:L   ZSET    token by ticket: the waiters that are heard of
-- KEYS[4] dlock.fence:{tag}:L   STRING  the last fence
-- KEYS[5] dlock.log:{tag}:L     LIST    the last ends, newest first
-- and, named from these, dlock.waiter:{tag}:L:<token> HASH, dlock.spent:{tag}:L:<token> STRING,
-- dlock.wake:{tag}:L:<token>:<connection> LIST. All lie in the slot of L.
--
-- Why one script: the decision, the grant to the next and its wake are one atomic step (I3, I9).
-- The server's clock is read once, here: on Redis 7.0 it moves within a script. Expiries are set and judged by that one
-- reading (PEXPIREAT), so that a lock is never over for one line of a script and not for the next.

local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
local L, HOLD, QUEUE, FENCE, LOG = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local rest = string.sub(HOLD, #'dlock.hold:' + 1)

local lock, lock_until, hold, foreign_type

local function int(n) return string.format('%.0f', n) end
local function waiter_key(token) return 'dlock.waiter:' .. rest .. ':' .. token end
local function spent_key(token) return 'dlock.spent:' .. rest .. ':' .. token end
local function left(until_ms) return math.max(until_ms - ms, 0) end
local function gone_by(since_us) return math.max(ms - math.floor(since_us / 1000), 0) end

-- An out-of-memory server refuses a script at its first write that may need memory, but never one that has written
-- already (I14). This write needs none.
local function write_first() redis.call('PEXPIRE', HOLD, HISTORY_KEPT) end

-- `caller` is the token on whose behalf the script runs, if there is one.
local function load(caller)
  local value = redis.pcall('GET', L)
  -- Only a value of another type is somebody else's; a right that is missing must not pass for it.
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then redis.call('GET', L) end
  local h = redis.call('HMGET', HOLD, 'token', 'fence', 'since', 'until', 'cool', 'confirmed', 'forced', 'waited', 'owner')
  if h[1] then
    hold = { token = h[1], fence = h[2], since = h[3], ['until'] = tonumber(h[4]), cool = tonumber(h[5]),
      confirmed = h[6] == '1', forced = h[7] == '1', waited = h[8], owner = h[9] }
  end
  if not value then
    lock = 'free'
  elseif type(value) == 'table' then
    lock, foreign_type = 'foreign', redis.call('TYPE', L).ok
  elseif hold and value == hold.token then
    lock, lock_until = 'held', math.max(hold['until'], hold.cool)
  elseif value == caller then
    -- The lock key is the truth (I12): that HOLD was evicted or deleted does not end the caller's hold.
    lock, lock_until = 'held', ms + math.max(redis.call('PTTL', L), 1)
    hold = { token = caller, fence = redis.call('GET', FENCE) or int(us), since = int(us), ['until'] = lock_until,
      cool = 0, confirmed = true, forced = false, waited = '0', owner = '{}' }
  else
    local marker, due = string.match(value, '^dlock/(%l+):(%d+)$')
    if (marker == 'cooling' or marker == 'revoked') and #due < 16 then
      lock, lock_until = marker, tonumber(due)
    else
      lock, foreign_type = 'foreign', 'string'
    end
  end
end

local function is_held_by(token) return lock == 'held' and hold.token == token end
local function is_revoked_from(token) return lock == 'revoked' and hold and hold.token == token end

local function free()
  redis.call('DEL', L)
  lock, lock_until = 'free', nil
end

local function put(value, kind, due)
  redis.call('SET', L, value, 'PXAT', int(due))
  lock, lock_until = kind, due
end

local function entry(outcome, job, by)
  local ended = ms
  if outcome == 'expired' then ended = math.min(ms, hold['until']) end
  return cjson.encode({ outcome, hold.owner, hold.fence, hold.since, int(ended), hold.waited, job or '', by or '' })
end

local function finish(outcome, job, by)
  if hold.confirmed and not hold.forced then
    -- A log that somebody made something else of must not keep the lock from being given back.
    if type(redis.pcall('LPUSH', LOG, entry(outcome, job, by))) == 'number' then
      redis.call('LTRIM', LOG, 0, LOG_KEPT - 1)
      redis.call('PEXPIRE', LOG, HISTORY_KEPT)
    end
  end
  redis.call('DEL', HOLD)
  hold = nil
end

local function cool_or_free(due)
  if due > ms then put('dlock/cooling:' .. int(due), 'cooling', due) else free() end
end

local function unnoticed_end()
  if not hold or lock == 'held' or lock == 'revoked' then return nil end
  if ms >= math.max(hold['until'], hold.cool) then return 'expired' end
  return 'lost'
end

-- The first half of settle: what has run out, or is no longer borne out by the lock key, is over.
local function expire()
  if lock_until and ms >= lock_until then free() end
  local outcome = unnoticed_end()
  if outcome then finish(outcome) end
end

local function grant(token, owner, lease, waited)
  -- From 2^53 on there is no next number here, so such a fence is none of ours.
  local last = tonumber(redis.call('GET', FENCE) or 0)
  if not last or last >= 9007199254740991 then last = 0 end
  local fence = math.max(us, last + 1)
  redis.call('SET', FENCE, int(fence), 'PX', HISTORY_KEPT)
  hold = { token = token, fence = int(fence), since = int(us), ['until'] = ms + lease, cool = 0, confirmed = false,
    forced = false, waited = int(waited), owner = owner }
  lock = 'held'
end

local function save_hold()
  if lock == 'held' then put(hold.token, 'held', math.max(hold['until'], hold.cool)) end
  redis.call('HSET', HOLD, 'token', hold.token, 'fence', hold.fence, 'since', hold.since, 'until', int(hold['until']),
    'cool', int(hold.cool), 'confirmed', hold.confirmed and '1' or '0', 'forced', hold.forced and '1' or '0',
    'waited', hold.waited, 'owner', hold.owner)
  redis.call('PEXPIRE', HOLD, HISTORY_KEPT)
end

local function wake(token, connection)
  if not connection then return end
  local key = 'dlock.wake:' .. rest .. ':' .. token .. ':' .. connection
  redis.call('LPUSH', key, '1')
  redis.call('PEXPIRE', key, 2 * SILENCE)
end

-- The head is told when the lock will be free earlier than it was told before, or when it has just become the head.
local function wake_head()
  local head = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if head then wake(head, redis.call('HGET', waiter_key(head), 'wake')) end
end

-- The second half of settle: park the silent, and grant to whoever is now entitled. `caller` needs no wake.
local function serve(caller)
  while lock == 'free' do
    local head = redis.call('ZPOPMIN', QUEUE)[1]
    if not head then return end
    local w = redis.call('HMGET', waiter_key(head), 'silent', 'since', 'owner', 'wake')
    if w[1] and ms < tonumber(w[1]) then
      grant(head, w[3], CONFIRM_WITHIN, gone_by(w[2]))
      save_hold()
      if head ~= caller then wake(head, w[4]) end
    end
  end
end

-- What stands in the way of a grant: state, left, owner, fence, since, until, confirmed.
local function blocker()
  if lock == 'free' then return { 'free', '', '', '', '', '', '' } end
  if lock == 'foreign' then
    local ttl = redis.call('PTTL', L)
    return { 'foreign', ttl >= 0 and int(ttl) or '', foreign_type, '', '', '', '' }
  end
  local state = lock
  if lock == 'held' and ms >= hold['until'] then state = 'cooling' end
  if state == 'cooling' or not hold then return { state, int(left(lock_until)), '', '', '', '', '' } end
  return { state, int(left(lock_until)), hold.owner, hold.fence, hold.since, int(hold['until']), hold.confirmed and '1' or '0' }
end
