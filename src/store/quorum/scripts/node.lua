-- node.lua: what every script of a quorum starts with: the record of one lock as it lies on one of the masters. No
-- master knows of the others; what their answers mean together is decided in quorum.rs. There is no queue and no wake.
-- Its constants (SPENT_KEPT, LOG_KEPT, HISTORY_KEPT, in ms; BOUNDS) are put in front of it from src/law.rs.
--
-- KEYS[1] L, the lock key         STRING  the holder's token, or a marker dlock/cooling:<until>, dlock/revoked:<until>
-- KEYS[2] dlock.quorum:{tag}:L    HASH    the holder: token fence since until cool confirmed forced attempt waited
--                                         owner asked
-- KEYS[3] dlock.fence:{tag}:L     STRING  the greatest fence that a quorum has agreed on, as far as this master knows
-- KEYS[4] dlock.log:{tag}:L       LIST    the last ends that this master saw, newest first
-- KEYS[5] dlock.stat:{tag}:L      HASH    totals, as this master saw it; the fields of a single server
-- and, named from these, dlock.spent:{tag}:L:<token> STRING. L, fence, log, totals and spent are those of a single server; the
-- holder's record has a name of its own, so that neither arrangement takes the other's for its own.
--
-- Every reply begins: what, now us, run id. The run id tells whether two of the masters are one.
-- The server's clock is read once, here (I3).

local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)
local L, HOLD, FENCE, LOG, STAT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local rest = string.sub(HOLD, #'dlock.quorum:' + 1)

-- Greater than every attempt: what an attempt that failed takes back is not this.
local NO_ATTEMPT = 9007199254740991

local lock, lock_until, hold, foreign_type

local function int(n) return string.format('%.0f', n) end
local function spent_key(token) return 'dlock.spent:' .. rest .. ':' .. token end
local function left(until_ms) return math.max(until_ms - ms, 0) end

-- A user without the right to INFO gets an error here, and no age.
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

local server = info('server')
local run_id = string.match(server, 'run_id:(%x+)') or ''

local function answer(what, ...) return { what, int(us), run_id, ... } end

-- Why this master's word does not count, if it does not. One that has been up for less than the longest lease may have
-- forgotten a lock that is still held. Both readings behind the uptime are cut to seconds: it may be one too many.
local function unfit(longest)
  local role = string.match(info('replication'), 'role:(%a+)')
  local uptime = tonumber(string.match(server, 'uptime_in_seconds:(%-?%d+)'))
  if role and role ~= 'master' then return answer('replica') end
  if run_id == '' or not role or not uptime then return answer('ageless') end
  local missing = longest - (uptime - 1) * 1000
  if missing > 0 then return answer('young', int(missing)) end
end

-- An out-of-memory server refuses a script at its first write that may need memory, but never one that has written
-- already (I14). This write needs none.
local function write_first() redis.call('PEXPIRE', HOLD, HISTORY_KEPT) end

-- `caller` is the token on whose behalf the script runs, if there is one.
local function load(caller)
  local value = redis.pcall('GET', L)
  local h = redis.call('HMGET', HOLD, 'token', 'fence', 'since', 'until', 'cool', 'confirmed', 'forced', 'attempt', 'waited',
    'owner', 'asked')
  if h[1] then
    hold = { token = h[1], fence = h[2], since = h[3], ['until'] = tonumber(h[4]), cool = tonumber(h[5]),
      confirmed = h[6] == '1', forced = h[7] == '1', attempt = tonumber(h[8]), waited = h[9],
      owner = h[10], asked = h[11] }
  end
  if not value then
    lock = 'free'
  elseif type(value) == 'table' then
    lock, foreign_type = 'foreign', redis.call('TYPE', L).ok
  elseif hold and value == hold.token then
    lock, lock_until = 'held', math.max(hold['until'], hold.cool)
  elseif value == caller then
    -- The lock key is the truth (I12): that the record was evicted or deleted does not end the caller's hold.
    lock, lock_until = 'held', ms + math.max(redis.call('PTTL', L), 1)
    hold = { token = caller, fence = redis.call('GET', FENCE) or int(us), since = int(us), ['until'] = lock_until,
      cool = 0, confirmed = true, forced = false, attempt = NO_ATTEMPT, waited = '0', owner = '{}',
      asked = '' }
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

local function forget_hold()
  redis.call('DEL', HOLD)
  hold = nil
end

local function ended_at(outcome)
  if outcome == 'expired' then return math.min(ms, hold['until']) end
  return ms
end

local function entry(outcome, job, by)
  return cjson.encode({ outcome, hold.owner, hold.fence, hold.since, int(ended_at(outcome)), hold.waited, job or '',
    by or hold.asked })
end

-- The bucket of a span, as the end of a field's name: the first whose bound is not below it.
local function bucket(span_ms)
  for i, bound in ipairs(BOUNDS) do
    if span_ms <= bound then return int(i - 1) end
  end
  return int(#BOUNDS)
end

-- Adds to the totals. If somebody made something else of their key, they are not counted; nothing else depends on them.
local function tally(counts)
  for field, n in pairs(counts) do redis.pcall('HINCRBY', STAT, field, int(n)) end
  redis.call('PEXPIRE', STAT, HISTORY_KEPT)
end

local function tally_end(outcome, job)
  local held = math.max(ended_at(outcome) - math.floor(hold.since / 1000), 0)
  local counts = { ['held.' .. bucket(held)] = 1, ['held.sum'] = held, ['end.' .. outcome] = 1 }
  if job and job ~= '' then counts[job == '{"status":0}' and 'succeeded' or 'failed'] = 1 end
  tally(counts)
  redis.pcall('HSET', STAT, 'last.' .. outcome, int(ended_at(outcome)))
end

local function finish(outcome, job, by)
  if hold.confirmed and not hold.forced then
    -- A log that somebody made something else of must not keep the lock from being given back.
    if type(redis.pcall('LPUSH', LOG, entry(outcome, job, by))) == 'number' then
      redis.call('LTRIM', LOG, 0, LOG_KEPT - 1)
      redis.call('PEXPIRE', LOG, HISTORY_KEPT)
    end
    tally_end(outcome, job)
  end
  forget_hold()
end

local function cool_or_free(due)
  if due > ms then put('dlock/cooling:' .. int(due), 'cooling', due) else free() end
end

local function unnoticed_end()
  if not hold or lock == 'held' or lock == 'revoked' then return nil end
  if ms >= math.max(hold['until'], hold.cool) then return 'expired' end
  return 'lost'
end

-- What has run out, or is no longer borne out by the lock key, is over.
local function expire()
  if lock_until and ms >= lock_until then free() end
  local outcome = unnoticed_end()
  if outcome then finish(outcome) end
end

-- From 2^53 on there is no next number here, so such a fence is none of ours.
local function last_fence()
  local last = tonumber(redis.call('GET', FENCE) or 0)
  if not last or last >= 9007199254740991 then last = 0 end
  return last
end

local function remember_fence(fence)
  redis.call('SET', FENCE, int(math.max(last_fence(), tonumber(fence))), 'PX', HISTORY_KEPT)
end

local function save_hold()
  put(hold.token, 'held', math.max(hold['until'], hold.cool))
  redis.call('HSET', HOLD, 'token', hold.token, 'fence', hold.fence, 'since', hold.since, 'until', int(hold['until']),
    'cool', int(hold.cool), 'confirmed', hold.confirmed and '1' or '0', 'forced', hold.forced and '1' or '0',
    'attempt', int(hold.attempt), 'waited', hold.waited, 'owner', hold.owner, 'asked', hold.asked)
  redis.call('PEXPIRE', HOLD, HISTORY_KEPT)
end

-- What stands in the way of a grant: state, left ms, token (of a foreign holder: type), owner, fence, since us,
-- until ms, confirmed, who asked it to end.
local function blocker()
  if lock == 'free' then return { 'free', '', '', '', '', '', '', '', '' } end
  if lock == 'foreign' then
    local ttl = redis.call('PTTL', L)
    return { 'foreign', ttl >= 0 and int(ttl) or '', foreign_type, '', '', '', '', '', '' }
  end
  local state = lock
  if lock == 'held' and ms >= hold['until'] then state = 'cooling' end
  if state == 'cooling' or not hold then return { state, int(left(lock_until)), '', '', '', '', '', '', '' } end
  return { state, int(left(lock_until)), hold.token, hold.owner, hold.fence, hold.since, int(hold['until']),
    hold.confirmed and '1' or '0', hold.asked }
end
