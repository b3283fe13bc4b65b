-- record.lua: the first part of every script, of a single server and of a master of a quorum: the
-- records of locks in Redis. A Lua port of src/rules/record.rs, with mostly the same names. How a
-- hold ends is in ended.lua, waiters are in queue.lua.
--
-- Constants of src/rules.rs stand before it (SILENCE, ABSENCE, CONFIRM_WITHIN, HEARTBEAT,
-- TICKET_KEPT, SPENT_KEPT, PREFERENCE, GRANTED_AT_ONCE, FOREIGN_LOOK, WATCH_KEPT, LOG_KEPT,
-- ONCE_PER_MOST, PAUSE_MOST, HISTORY_KEPT, EXPECTED_KEPT, times in ms; BOUNDS), and the differences
-- between the two arrangements (src/store/redis/script.rs). RECORD is the kind of key in which a hold is recorded: each
-- arrangement has its own, so that neither takes the other's holds for its own. PARTS is the number
-- of keys declared for each lock. With EXCLUSIVE_ONLY, shared locks and slots count as foreign.
--
-- ARGV[1] is a JSON object, the argument, which each script describes. The reply is a JSON object,
-- too: the outcome as a word, the time in ms, and the fields that the script describes. cjson cuts
-- numbers after 14 digits, so fences and times in us are text in JSON. It writes an empty list as
-- {}, so an empty list is left out.
--
-- KEYS, for each lock in the request, in order of name: nine on a single server, on a master of a
-- quorum those with a star:
--   L, the lock key *     STRING  the holder's token, or a marker: dlock/shared:<until>,
--                                 dlock/slots/<n>:<until>, dlock/cooling:<until>,
--                                 dlock/revoked:<until>
--   dlock.hold:{tag}:L *  HASH    token -> JSON {phase, fence, since (us), until, cool, confirmed,
--                                 waited, owner}, and where it applies {slot, asked, superseded,
--                                 not_replaceable, pause_on_failure, renewed, during_pause}. On a
--                                 master of a quorum it is dlock.quorum:{tag}:L, and has {attempt}.
--                                 #<slot> -> token, if the lock has slots
--   dlock.due:{tag}:L     ZSET    shared, slots: the tokens that hold, by their end
--   dlock.kept:{tag}:L    ZSET    shared, slots: the cooling and revoked tokens, by their end
--   dlock.queue:{tag}:L   ZSET    token by ticket: the waiters that are not suspended
--   dlock.fence:{tag}:L * STRING  the last fence
--   dlock.log:{tag}:L *   LIST    the last ends, newest first
--   dlock.stat:{tag}:L *  HASH    totals: waited.count, waited.sum (ms), held.<bucket>, held.sum,
--                                 busy, given-up, last.<outcome>, …
--   dlock.watch:{tag}:L   ZSET    token of a watcher, by when its watch ends
-- Keys that the scripts compute from these:
--   dlock.heard:{tag}:L   STRING  when heartbeats arrived: JSON {last, from, back, before}
--   dlock.done:{tag}:L    STRING  the last successful hold acquired with --once-per:
--                                 JSON {owner, fence, since, waited, ended}
--   dlock.expect:{tag}:L  STRING  how often a run is to succeed: JSON {every, since (first named)}
--   dlock.said:{tag}:L    STRING  what was announced, by its kind: JSON {gave-up = {fence or
--                                 pause, at, by}, …}
--   dlock.pause:{tag}:L   STRING  the pause: JSON {by, since, until}, and {cause} after a failure
--   dlock.newest:{tag}:L  STRING  the newest caller with --replace: JSON {owner, came (us), token}
--   dlock.waiter:{tag}:L:<token>  STRING  JSON {ticket, since (us), stale_at, mode, names, owner,
--                                 terms, connection}
--   dlock.spent:{tag}:L:<token>   STRING
--   dlock.wake:{tag}:L:<token>:<connection>  LIST, for the first of the locks
-- All of them lie in the slot of L, and all locks of one hold lie in one slot.
--
-- The server's clock is read once, here, because on Redis 7.0 it moves within a script. Expiries
-- are set (PEXPIREAT) and judged by that one reading, so that a lock is not over for one line of a
-- script and held for the next.

local arg = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local ms = math.floor(us / 1000)

local function int(n) return string.format('%.0f', n) end
local function left(until_ms) return math.max(until_ms - ms, 0) end

-- Set on a master of a quorum.
local run_id

-- The reply. `fields` is a table of its own.
local function answer(outcome, fields)
  local reply = fields or {}
  reply.outcome, reply.now, reply.run_id = outcome, ms, run_id
  return cjson.encode(reply)
end

local function list(all) return all[1] and all or nil end

-- A stored number; nil if it is not one that dlock writes.
local function number_in(value)
  local number = string.match(tostring(value), '^%d+$') and tonumber(value)
  return number and number < 2 ^ 53 and number or nil
end

-- A stored time in milliseconds. JSON has numbers of up to 14 digits whole.
local MS_MOST = 10 ^ 14 - 1
local function ms_in(value)
  local number = number_in(value)
  return number and number <= MS_MOST and number or nil
end

-- A stored JSON object; nil if it is not one.
local function object_in(json)
  local ok, object = pcall(cjson.decode, type(json) == 'string' and json or '')
  return ok and type(object) == 'table' and object or nil
end

local function object_at(key) return object_in(redis.pcall('GET', key)) end

-- The number of slots of a mode; nil if it is another mode.
local function slots_of(mode)
  local slots = number_in(string.match(tostring(mode), '^slots/(%d+)$'))
  return slots and slots >= 1 and slots <= SLOTS_MAX and slots or nil
end

-- A mode as it is in an argument or a reply: slots are an object there.
local function mode_from(mode) return type(mode) == 'table' and 'slots/' .. int(mode.slots) or mode end
local function mode_to(mode) return slots_of(mode) and { slots = slots_of(mode) } or mode end

-- An out-of-memory server refuses a script at its first write that may need memory, but never one
-- that has already written (I14). This write needs none.
local function write_first() redis.call('PEXPIRE', KEYS[2], HISTORY_KEPT) end

-- A lock is identified by its rest, the part of its key names after the kind: {tag}:L.
local book = {}
local function key_of(kind, lock) return 'dlock.' .. kind .. ':' .. lock.rest end
local function waiter_key(lock, token) return key_of('waiter', lock) .. ':' .. token end
local function due_key(lock) return key_of('due', lock) end
local function kept_key(lock) return key_of('kept', lock) end
local function spent_key(lock, token) return key_of('spent', lock) .. ':' .. token end

-- Records the token as released: it is refused from now on. `was` is '1' if it gave something back,
-- 's' if a newer run with --replace superseded it, else '0'.
local function spend(lock, token, was) redis.call('SET', spent_key(lock, token), was, 'PX', SPENT_KEPT) end

local function due_of(hold)
  if hold.phase == 'held' then return math.max(hold['until'], hold.cool) end
  if hold.phase == 'cooling' then return hold.cool end
  return hold['until']
end

local PHASES = { held = true, cooling = true, revoked = true }

-- A record that another program has changed is no hold; the lock key still tells until when the
-- lock is held.
local function decoded(json)
  local h = object_in(json)
  if not h or not PHASES[h.phase] or type(h.owner) ~= 'table' then return false end
  local due, cool, waited = ms_in(h['until']), ms_in(h.cool), ms_in(h.waited)
  if not (due and cool and waited and number_in(h.fence) and number_in(h.since)) then return false end
  return { phase = h.phase, fence = h.fence, since = h.since, ['until'] = due, cool = cool, confirmed = h.confirmed == true,
    waited = waited, owner = h.owner, slot = number_in(h.slot), attempt = number_in(h.attempt) and h.attempt,
    asked = type(h.asked) == 'table' and h.asked or nil, superseded = h.superseded == true or nil,
    not_replaceable = h.not_replaceable == true or nil, pause_on_failure = ms_in(h.pause_on_failure),
    renewed = h.renewed == true or nil, during_pause = h.during_pause == true or nil }
end

-- Sorts holds by their end.
local function by_due(a, b)
  local x, y = due_of(a.hold), due_of(b.hold)
  return x < y or x == y and a.token < b.token
end

-- All recorded holds, as a list of { token, hold } in the order in which they run out.
local function all_holds(lock)
  local flat, list = redis.call('HGETALL', lock.HOLD), {}
  for i = 1, #flat, 2 do
    local hold = string.sub(flat[i], 1, 1) ~= '#' and decoded(flat[i + 1])
    if hold then
      list[#list + 1] = { token = flat[i], hold = hold }
      lock.holds[flat[i]] = hold
    end
  end
  table.sort(list, by_due)
  return list
end

local function is_many(lock) return lock.kind == 'shared' or lock.slots ~= nil end

-- The recorded hold of a token; cached.
local function hold_of(lock, token)
  local hold = lock.holds[token]
  if hold == nil then
    local json = redis.call('HGET', lock.HOLD, token)
    hold = json and decoded(json)
    lock.holds[token] = hold
  end
  return hold
end

-- Reads the lock key. `caller` is the token on whose behalf the script runs, if there is one.
local function load(lock, caller)
  local value = redis.pcall('GET', lock.L)
  -- Only a value of another type is foreign. For any other error, such as a missing permission, GET
  -- raises it again.
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then redis.call('GET', lock.L) end
  if not value then
    lock.kind = 'free'
    return
  elseif type(value) == 'table' then
    lock.kind, lock.foreign_type = 'foreign', redis.call('TYPE', lock.L).ok
    return
  end
  local kind, due = string.match(value, '^dlock/([%l/%d]+):(%d+)$')
  local slots = kind and slots_of(kind)
  local is_ours = kind == 'cooling' or kind == 'revoked' or (slots or kind == 'shared') and not EXCLUSIVE_ONLY
  if ms_in(due) and is_ours then
    lock.kind, lock['until'], lock.slots = kind, tonumber(due), slots
    return
  end
  local hold = hold_of(lock, value)
  if hold and hold.phase == 'held' then
    lock.kind, lock['until'], lock.token = 'exclusive', due_of(hold), value
  elseif value == caller then
    -- The lock key is the truth (I12): an evicted or deleted HOLD does not end the caller's hold.
    lock.kind, lock['until'], lock.token = 'exclusive', ms + math.max(redis.call('PTTL', lock.L), 1), value
    local fence = number_in(arg.fence or redis.call('GET', lock.FENCE)) or us
    -- The fence is the time of the grant, unless the clock was set back since.
    lock.holds[value] = { phase = 'held', fence = int(fence), since = int(math.min(us, fence)), ['until'] = lock['until'], cool = 0,
      confirmed = true, waited = 0, owner = {} }
  else
    lock.kind, lock.foreign_type = 'foreign', 'string'
  end
end

-- Whether open() reads all holds of a lock: views need them all.
local reads_all = false

local function open(rest, caller)
  local lock = book[rest]
  if not lock then
    -- As one constructor: a table that grows is copied, and a script may read many locks.
    lock = { rest = rest, L = string.match(rest, '^{[^}]*}:(.*)$'), HOLD = 'dlock.' .. RECORD .. ':' .. rest,
      QUEUE = 'dlock.queue:' .. rest, FENCE = 'dlock.fence:' .. rest, STAT = 'dlock.stat:' .. rest, holds = {} }
    book[rest] = lock
    if reads_all then lock.all = all_holds(lock) end
    load(lock, caller)
  end
  return lock
end

-- When heartbeats arrived: the last one, and the last gap without any (rules:
-- Record::notice_absence).
local function absence(lock)
  local a = lock.absence
  if not a then
    local h = object_at(key_of('heard', lock)) or {}
    a = { last = ms_in(h.last) or 0, from = ms_in(h.from) or 0, back = ms_in(h.back) or 0, before = ms_in(h.before) or 0 }
    if a.last > 0 and a.last ~= a.from and ms - a.last > ABSENCE then
      a.from, a.back, a.before, a.is_news = a.last, ms, a.back, true
    end
    lock.absence = a
  end
  return a
end

-- When a waiter becomes stale; `recorded` is the time in its record. A waiter that was not stale when
-- a gap began, and sent no heartbeat since, has a whole SILENCE from the end of the gap. Not if its
-- ticket is forgotten before, nor if it sent no heartbeat since the gap before that one either.
local function stale_at(lock, recorded)
  local a = absence(lock)
  local last_seen, again = recorded - SILENCE, a.back + SILENCE
  local was_seen = recorded > a.from and last_seen <= a.from and last_seen >= a.before
  return was_seen and again <= last_seen + TICKET_KEPT and math.max(recorded, again) or recorded
end

-- The lock whose keys begin at this index.
local function lock_at(i, caller) return open(string.sub(KEYS[i + 1], #'dlock.:' + #RECORD + 1), caller) end

-- The locks of the request.
local function named(caller)
  local locks = {}
  for i = 1, #KEYS, PARTS do locks[#locks + 1] = lock_at(i, caller) end
  return locks
end

local function is_held_by(lock, token)
  if lock.kind == 'exclusive' then return lock.token == token end
  local hold = is_many(lock) and hold_of(lock, token)
  return hold and hold.phase == 'held'
end

-- Whether a hold is that of the grant with this fence. A late acquire may have been granted another
-- one with the same token.
local function is_of_grant(hold, fence) return not fence or number_in(hold.fence) == number_in(fence) end

local function is_revoked_from(lock, token)
  if lock.kind ~= 'revoked' and not is_many(lock) then return false end
  local hold = hold_of(lock, token)
  return hold and hold.phase == 'revoked'
end

local function held_everywhere(locks, token)
  for _, lock in ipairs(locks) do
    if not is_held_by(lock, token) then return false end
  end
  return true
end

-- Number of recorded holds of a shared lock or one with slots: held, cooling or revoked.
local function count(lock)
  if not lock.count then lock.count = redis.call('ZCARD', due_key(lock)) + redis.call('ZCARD', kept_key(lock)) end
  return lock.count
end

local function free(lock)
  lock.changed = true
  redis.call('DEL', lock.L)
  lock.kind, lock['until'], lock.slots, lock.token = 'free', nil, nil, nil
end

local function put(lock, value, due)
  redis.call('SET', lock.L, value, 'PXAT', int(due))
  lock['until'] = due
end

local function mark(lock, kind, due)
  lock.kind = kind
  put(lock, 'dlock/' .. kind .. ':' .. int(due), due)
end

-- Writes a hold, and makes the lock key last as long as the hold.
local function save(lock, token, hold)
  local due = due_of(hold)
  redis.call('HSET', lock.HOLD, token, cjson.encode(hold))
  lock.holds[token] = hold
  redis.call('PEXPIRE', lock.HOLD, HISTORY_KEPT)
  if lock.kind == 'exclusive' then
    put(lock, token, due)
  elseif is_many(lock) then
    local set, other = due_key(lock), kept_key(lock)
    if hold.phase ~= 'held' then set, other = other, set end
    if hold.slot then redis.call('HSET', lock.HOLD, '#' .. hold.slot, token) end
    redis.call('ZADD', set, int(due), token)
    redis.call('PEXPIRE', set, HISTORY_KEPT)
    redis.call('ZREM', other, token)
    lock.count = nil
    if due > (lock['until'] or 0) then mark(lock, lock.kind, due) end
  end
end

local function erase(lock, token, hold)
  lock.changed = true
  redis.call('HDEL', lock.HOLD, token)
  lock.holds[token] = false
  if hold.slot then redis.call('HDEL', lock.HOLD, '#' .. hold.slot) end
  if is_many(lock) then
    redis.call('ZREM', due_key(lock), token)
    redis.call('ZREM', kept_key(lock), token)
    lock.count = nil
  end
end

-- A shared lock or one with slots is free once its last hold is gone.
local function free_if_empty(lock)
  if is_many(lock) and count(lock) == 0 then free(lock) end
end

-- Numbers are exact only below 2^53, so a greater fence is not dlock's.
local function last_fence(lock)
  if not lock.last then
    local last = tonumber(redis.call('GET', lock.FENCE) or 0)
    lock.last = last and last < 9007199254740991 and last or 0
  end
  return lock.last
end

local function write_fence(lock, fence)
  redis.call('SET', lock.FENCE, int(fence), 'PX', HISTORY_KEPT)
  lock.last = fence
end

local function extreme(set, rank)
  local found = redis.call('ZRANGE', set, rank, rank, 'WITHSCORES')
  return found[1], tonumber(found[2])
end

-- The revoked holds of a shared lock or one with slots.
local function revoked_of(lock)
  local revoked = {}
  for _, token in ipairs(redis.call('ZRANGE', kept_key(lock), 0, -1)) do
    local hold = hold_of(lock, token)
    if hold and hold.phase == 'revoked' then revoked[#revoked + 1] = token end
  end
  return revoked
end

-- The pause of the lock, if it is paused. A pause that ends later than the longest one allowed was
-- made by a wrong clock or another program, and would never end.
local function pause_of(lock)
  if lock.paused == nil then
    local p = object_at(key_of('pause', lock)) or {}
    local since, due = ms_in(p.since), ms_in(p['until'])
    local is_valid = p.by and since and due and due > ms and due <= ms + PAUSE_MOST
    local cause = p.cause == 'failure' and p.cause or nil
    lock.paused = is_valid and { by = p.by, since = since, ['until'] = due, cause = cause } or false
  end
  return lock.paused or nil
end

local function write_pause(lock)
  redis.call('SET', key_of('pause', lock), cjson.encode(lock.paused), 'PXAT', int(lock.paused['until']))
  lock.changed = true
end

-- Begins the pause of the argument; without one, ends the pause. Returns what it was before.
local function set_pause(lock)
  local was = pause_of(lock)
  if arg.lasts then
    local due = ms + arg.lasts
    if was and not arg.shortens then due = math.max(due, was['until']) end
    lock.paused = { by = arg.by, since = ms, ['until'] = due }
    write_pause(lock)
  else
    redis.call('DEL', key_of('pause', lock))
    lock.paused, lock.changed = false, true
  end
  return was and 'paused' or 'open'
end

-- Pauses the lock, without writing it, after a failure under this hold, unless the hold was asked to
-- end. Returns whether it did (rules: Record::pause_after).
local function pause_after(lock, hold, since, lasts, reason)
  local due, was = since + math.min(lasts, PAUSE_MOST), pause_of(lock)
  if hold.asked or due <= (was and was['until'] or ms) then return false end
  if was and not was.cause then
    was['until'] = due
    return true
  end
  local by = {}
  for field, value in pairs(hold.owner) do by[field] = value end
  by.reason, by.ttl = reason, nil
  lock.paused = { by = by, since = since, ['until'] = due, cause = 'failure' }
  return true
end

-- The newest caller with --replace.
local function newest_of(lock)
  local n = object_at(key_of('newest', lock)) or {}
  local came = number_in(n.came)
  local token = type(n.token) == 'string' and string.match(n.token, '^%x+$')
  return type(n.owner) == 'table' and came and token and { owner = n.owner, came = came, token = token } or nil
end

-- The newer run that supersedes a caller that came at `came`. One that came in the future does not
-- count: the clock was set back since.
local function superseded_by(lock, token, came)
  local newest = newest_of(lock)
  return newest and newest.token ~= token and newest.came > came and newest.came <= us and newest or nil
end

-- Makes the token the newest. Returns the one before, if that was another.
local function be_newest(lock, token, came, owner)
  local old = newest_of(lock)
  if old and old.token == token then return nil end
  local newest = cjson.encode({ owner = owner, came = int(came), token = token })
  redis.call('SET', key_of('newest', lock), newest, 'PX', HISTORY_KEPT)
  return old
end

-- Whether a hold must be asked to end for a run with --replace that came at `came`. A grant in the
-- future was made before the clock was set back, so it counts as older.
local function is_replaced(hold, came)
  local since = tonumber(hold.since)
  return hold.phase == 'held' and not hold.not_replaceable and (since < came or since > us) and not hold.asked
end

-- A hold as it is in a reply (rules: Hold::shown).
local function shown(hold)
  local since = math.floor(hold.since / 1000)
  return { owner = hold.owner, fence = hold.fence, slot = hold.slot, since = since, held = math.max(ms - since, 0),
    lease = left(hold['until']), asked = hold.asked, superseded = hold.superseded, confirmed = hold.confirmed,
    during_pause = hold.during_pause, waited = hold.waited }
end

-- These holds as they are in a reply, the oldest first; nil if there are none.
local function people(holds)
  table.sort(holds, function(a, b)
    local x, y = tonumber(a.hold.since), tonumber(b.hold.since)
    return x < y or x == y and a.token < b.token
  end)
  local all = {}
  for i, one in ipairs(holds) do all[i] = shown(one.hold) end
  return list(all)
end

-- What blocks a caller that a pause does not keep out.
local function without_pause(b)
  b.paused = nil
  if b.state == 'paused' then b.state, b.left = 'free', nil end
  return b
end

-- The value of another program, as it is in a reply.
local function foreign(lock)
  local ttl = redis.call('PTTL', lock.L)
  return { kind = lock.foreign_type, left = ttl >= 0 and math.min(ttl, MS_MOST) or nil }
end

-- What blocks a caller that wants the lock in this mode, as it is in a reply (rules:
-- Record::blocker).
local function blocker(lock, mode)
  local b = { state = lock.kind, paused = pause_of(lock), others = 0 }
  if lock.kind == 'free' then
    if b.paused then b.state, b.left = 'paused', left(b.paused['until']) end
    return b
  elseif lock.kind == 'foreign' then
    b.state, b.foreign = 'held', foreign(lock)
    b.left = b.foreign.left
    return b
  end
  local due, hold = lock['until'], nil
  b.mode = 'exclusive'
  if lock.kind == 'exclusive' then
    hold = lock.holds[lock.token]
    b.state = ms >= hold['until'] and 'cooling' or 'held'
    if b.state == 'cooling' then hold = nil end
  elseif lock.kind == 'revoked' then
    local one = all_holds(lock)[1]
    hold = one and one.hold
  elseif is_many(lock) then
    b.mode = mode_to(lock.kind)
    -- The first slot to run out is enough.
    local first = lock.slots and mode == lock.kind
    local rank = first and 0 or -1
    local token, held_due = extreme(due_key(lock), rank)
    local _, kept_due = extreme(kept_key(lock), rank)
    if held_due and kept_due then
      due = first and math.min(held_due, kept_due) or math.max(held_due, kept_due)
    else
      due = held_due or kept_due or due
    end
    if token or count(lock) == 0 then
      b.state, b.others = 'held', math.max(redis.call('ZCARD', due_key(lock)) - 1, 0)
    else
      local revoked = revoked_of(lock)
      token = revoked[first and 1 or #revoked]
      b.state, b.others = token and 'revoked' or 'cooling', math.max(#revoked - 1, 0)
    end
    hold = token and hold_of(lock, token)
  end
  b.left, b.holder = left(due), hold and shown(hold) or nil
  return b
end
