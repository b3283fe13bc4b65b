-- prove.lua: whether and how the token holds all of these locks (rules: LockTable::prove). Writes
-- nothing.
-- Argument: token, fence (of the grant, if the caller knows it: the answer if the record was evicted).
-- Replies: held {mode, slot, fence, lease, asked (who asked it to end)} · not-held.
-- Why atomic: several locks are held all at one moment, or not.

local token, proof = arg.token, nil
for _, lock in ipairs(named(token)) do
  local hold = is_held_by(lock, token) and ms < lock['until'] and hold_of(lock, token)
  if not hold or not hold.confirmed or ms >= hold['until'] then return answer('not-held') end
  local lease = math.min(left(hold['until']), proof and proof.lease or math.huge)
  local asked = proof and proof.asked or hold.asked
  proof = { mode = mode_to(lock.kind), slot = hold.slot, fence = hold.fence, lease = lease, asked = asked }
end
return answer('held', proof)
