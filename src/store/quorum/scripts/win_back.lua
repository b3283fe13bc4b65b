-- win_back.lua: gives this master to a hold that lives on the others, or tells it the fence of a
-- hold that it has. Sent only before the hold's deadline, and after one of the others has confirmed
-- the hold.
-- Argument: token, ttl (ms), fence, held, waited, cooling, owner, not_replaceable: as the hold is on another master.
-- Replies: won · not-held, and those of acquire.lua for a master that does not count.
-- Why atomic: compare and take. A greater fence is that of a later grant: then the hold is over,
-- whatever its holder knows.

local token, fence = arg.token, arg.fence
write_first()
local lock = named(token)[1]
expire(lock)
local why = uncounted()
if why then return why end
local is_spent = redis.call('EXISTS', spent_key(lock, token)) == 1
if lock.kind == 'free' and not is_spent and last_fence(lock) <= tonumber(fence) then
  lock.kind, lock.token = 'exclusive', token
  -- Without an attempt, so that no failed attempt takes it back.
  lock.holds[token] = { phase = 'held', fence = fence, since = int(math.max(us - arg.held * 1000, 0)),
    cool = arg.cooling > 0 and ms + arg.cooling or 0, waited = arg.waited, owner = arg.owner, not_replaceable = arg.not_replaceable or nil }
elseif not is_held_by(lock, token) then
  return answer('not-held')
end
remember_fence(lock, fence)
local hold = hold_of(lock, token)
hold.fence, hold.confirmed, hold.waited, hold['until'] = fence, true, math.max(hold.waited, arg.waited), ms + arg.ttl
save(lock, token, hold)
return answer('won')
