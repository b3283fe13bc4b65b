-- renew.lua: extends the lease of the token that the lock key names, under this fence, and of no
-- other.
-- Argument: token, ttl (ms), fence (none: the recorded one), rest (as in a server's renew.lua).
-- Replies: renewed {fence (none: not told yet), held, waited, cooling (left, ms), owner, asked (whether it is
--        asked to end), superseded, not_replaceable} · missing: this master is free, and was granted to
--        nobody after that fence, so it may be won back · not-held · revoked, and those of
--        acquire.lua for a master that does not count.
-- Why atomic: compare and extend. A master whose answers came too late to be counted at the grant
-- learns the fence here.

local token, fence = arg.token, arg.fence
write_first()
local lock = named(token)[1]
expire(lock)
local why = uncounted()
if why then return why end
local hold = is_held_by(lock, token) and hold_of(lock, token)
if hold and is_granted(lock, hold, fence) then
  if fence then hold.fence, hold.confirmed = fence, true end
  if hold.confirmed then remember_fence(lock, hold.fence) end
  hold['until'] = ms + arg.ttl
  hold.owner.rest = arg.rest or hold.owner.rest
  save(lock, token, hold)
  return answer('renewed', { fence = agreed(hold), held = shown(hold).held, waited = hold.waited, cooling = left(hold.cool),
    owner = hold.owner, asked = hold.asked ~= nil, superseded = hold.superseded, not_replaceable = hold.not_replaceable })
end
if is_revoked_from(lock, token) then return answer('revoked') end
local is_spent = redis.call('EXISTS', spent_key(lock, token)) == 1
local is_newer = fence and last_fence(lock) > tonumber(fence)
if lock.kind == 'free' and not is_spent and not is_newer then return answer('missing') end
return answer('not-held')
