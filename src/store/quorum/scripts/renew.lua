-- renew.lua: extends the lease of the token that the lock key names, and of no other.
-- ARGV: token, ttl ms, longest lease ms, fence (0: the recorded one).
-- Replies: {'renewed', …, fence (0: not told yet), held for us, cooling left ms, owner, owner who
--        asked it to end or '', word} · {'missing', …}: this master is free, and was granted to
--        nobody after that fence, so it may be won back · {'not-held', …} · {'revoked', …}, and
--        those of acquire.lua for a master that does not count.
-- Why atomic: compare and extend. A master whose answers came too late to be counted at the grant
-- learns the fence here.

local token, ttl, fence = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
write_first()
local lock = named(token)[1]
expire(lock)
local why = unfit(tonumber(ARGV[3]))
if why then return why end
if is_held_by(lock, token) then
  local hold = hold_of(lock, token)
  if fence > 0 then hold.fence, hold.confirmed = ARGV[4], true end
  if hold.confirmed then remember_fence(lock, hold.fence) end
  hold['until'] = ms + ttl
  save(lock, token, hold)
  return answer('renewed', agreed(hold), int(us - hold.since), int(left(hold.cool)), hold.owner, hold.asked,
    hold.word)
end
if is_revoked_from(lock, token) then return answer('revoked') end
local is_spent = redis.call('EXISTS', spent_key(lock, token)) == 1
local is_newer = fence > 0 and last_fence(lock) > fence
if lock.kind == 'free' and not is_spent and not is_newer then return answer('missing') end
return answer('not-held')
