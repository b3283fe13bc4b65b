-- win_back.lua: gives this master to a hold that lives on the others, or tells it the fence of a
-- hold that it has. Sent only before the hold's deadline, and after one of the others has confirmed
-- the hold.
-- ARGV: token, ttl ms, longest lease ms, fence, held for us, cooling left ms, owner, 'stays' or ''.
-- Replies: {'won', …} · {'not-held', …}, and those of acquire.lua for a master that does not count.
-- Why atomic: compare and take. A greater fence is that of a later grant: then the hold is over,
-- whatever its holder knows.

local token, ttl, fence, held, cooling, owner =
  ARGV[1], tonumber(ARGV[2]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
write_first()
local lock = named(token)[1]
expire(lock)
local why = unfit(tonumber(ARGV[3]))
if why then return why end
local is_spent = redis.call('EXISTS', spent_key(lock, token)) == 1
if lock.kind == 'free' and not is_spent and last_fence(lock) <= tonumber(fence) then
  lock.kind, lock.token = 'exclusive', token
  -- Without an attempt, so that no failed attempt takes it back.
  lock.holds[token] = { phase = 'held', slot = '', fence = fence, since = int(math.max(us - held, 0)), cool = cooling > 0 and ms + cooling or 0,
     waited = '0', owner = owner, asked = '', word = ARGV[8] }
elseif not is_held_by(lock, token) then
  return answer('not-held')
end
remember_fence(lock, fence)
local hold = hold_of(lock, token)
hold.fence, hold.confirmed, hold['until'] = fence, true, ms + ttl
save(lock, token, hold)
return answer('won')
