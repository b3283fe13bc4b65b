-- prove.lua: whether and how the token holds all of these locks (rules: LockTable::prove). Writes
-- nothing.
-- ARGV: token.
-- Replies: {'held', now us, mode, slot or '', fence, lease ms} · {'not-held', now us}.
-- Why atomic: several locks are held all at one moment, or not.

local token, proof = ARGV[1], nil
for _, lock in ipairs(named(token)) do
  local hold = is_held_by(lock, token) and ms < lock['until'] and hold_of(lock, token)
  if not hold or not hold.confirmed or ms >= hold['until'] then return { 'not-held', int(us) } end
  local lease = left(hold['until'])
  if proof then lease = math.min(lease, proof[4]) end
  proof = { lock.kind, hold.slot, hold.fence, lease }
end
return { 'held', int(us), proof[1], proof[2], proof[3], int(proof[4]) }
