-- turn.lua: which waiter is next on this master. There is no queue, because the masters could not
-- agree on one. But a waiter asks every half second (LOOK in quorum.rs) and tells how long it has
-- waited, and a free lock is not granted to a caller that has waited less than another one that
-- still asks. Several masters may take different waiters for the first, so this is bounded: a
-- waiter that no longer asks counts for ASKS_WITHIN, and a free lock waits for nobody longer than
-- FREE_FOR.
--
-- dlock.turn:{tag}:L is a HASH: token -> <since when it waits>:<when it last asked>, of up to 64;
-- '#free' -> when a caller was first refused although the lock was free. It expires TURN_KEPT after
-- the last request.

local ASKS_WITHIN, FREE_FOR, TURN_KEPT, ASKERS = 1500, 3000, 10000, 64
-- Waits that differ by less count as equal: the time waited is older by the way to each master.
local TOGETHER = 100

local function turn_key(lock) return key_of('turn', lock) end

-- How long a caller counts as having waited (ms). One with --during-pause that asks while the lock is
-- paused, or has done so, goes before all others.
local function turn_of(lock, token, waited)
  if not arg.terms.during_pause then return waited end
  local entry = redis.pcall('HGET', turn_key(lock), token)
  local since = type(entry) == 'string' and string.match(entry, '^(%d+):')
  local preference = PREFERENCE / 1000
  local is_preferred = pause_of(lock) or since and tonumber(since) < ms - waited - preference / 2
  return is_preferred and waited + preference or waited
end

-- How many have waited longer than `waited` and still ask; how many ask in all; and when a caller
-- was first refused although the lock was free.
local function askers(lock, token, waited)
  local flat, ahead, others, refused, gone = redis.pcall('HGETALL', turn_key(lock)), 0, 0, nil, {}
  -- Another program wrote this.
  if #flat > 4 * ASKERS then
    redis.call('DEL', turn_key(lock))
    return 0, 0
  end
  for i = 1, #flat, 2 do
    local since, asked = string.match(flat[i + 1], '^(%d+):(%d+)$')
    since, asked = tonumber(since), tonumber(asked)
    if flat[i] == '#free' then
      refused = tonumber(flat[i + 1])
    elseif not since or asked > ms or asked + ASKS_WITHIN < ms then
      gone[#gone + 1] = flat[i]
    elseif flat[i] ~= token then
      others = others + 1
      if since + TOGETHER <= ms - waited then ahead = ahead + 1 end
    end
  end
  if #gone > 0 then redis.call('HDEL', turn_key(lock), unpack(gone)) end
  return ahead, others, refused
end

local function note_turn(lock, field, value)
  redis.pcall('HSET', turn_key(lock), field, value)
  redis.call('PEXPIRE', turn_key(lock), TURN_KEPT)
end

-- Removes the token. Returns whether it was there.
local function forget_turn(lock, token, ...) return redis.pcall('HDEL', turn_key(lock), token, ...) == 1 end
