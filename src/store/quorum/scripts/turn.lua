-- turn.lua: whose turn it is on this master. Nobody stands in a queue here, for the masters could not agree on one. But who
-- waits asks every half second (LOOK in quorum.rs) and says for how long it has waited, and what is free is not given to
-- one that has waited less than another who still asks. Several masters may take different ones for the first, so it is
-- bounded: who does not ask any more counts for ASKS_WITHIN, and a lock that is free waits for nobody longer than FREE_FOR.
--
-- dlock.turn:{tag}:L  HASH  token -> <since when it waits>:<when it last asked>, of up to 64; '#free' -> when somebody
--                           was first refused what was free. It is gone when nobody has asked for TURN_KEPT.

local ASKS_WITHIN, FREE_FOR, TURN_KEPT, ASKERS = 1500, 3000, 10000, 64
-- Who came together is taken as it comes: what is said of a wait is older by the way to each of the masters.
local TOGETHER = 100

local function turn_key(lock) return key_of('turn', lock) end

-- How many have waited longer than `waited` and still ask; how many ask in all; and when what was free was first refused.
local function askers(lock, token, waited)
  local flat, ahead, others, refused, gone = redis.pcall('HGETALL', turn_key(lock)), 0, 0, nil, {}
  -- Not what this script writes.
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

-- Whether the token was among those who ask.
local function forget_turn(lock, token, ...) return redis.pcall('HDEL', turn_key(lock), token, ...) == 1 end
