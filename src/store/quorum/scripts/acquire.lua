-- acquire.lua: phase one. Takes this master for the token if it is free, or extends the token's
-- lease.
-- ARGV: token, ttl ms, owner, attempt, longest lease ms, how long it has waited ms, patience
--        ('none' or 'queue'), --once-per ms (0: without), its other terms (of 'replaces' and
--        'stays').
-- Replies: {'granted', …, candidate} · {'busy', …, ahead, token of the holder, blocker…} ·
--        {'behind', …, ahead}: it is free, but others have waited longer · {'done', …, owner,
--        fence, since ms, ended ms, due ms} · {'superseded', …, owner of the newer run} · {'spent',
--        …} · {'replica', …} · {'ageless', …} · {'young', …, ms until it counts}.
-- Why atomic: no other client may come between the check and the grant. The candidate is not
-- recorded as a fence yet: only the fence of a majority is one (confirm.lua).

local token, ttl, owner, attempt, waited = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6])
local why = unfit(tonumber(ARGV[5]))
local lock = named(token)[1]
if redis.call('EXISTS', spent_key(lock, token)) == 1 then return answer('spent') end
if why then return why end
expire(lock)
local ahead, is_mine, is_free = 0, is_held_by(lock, token), lock.kind == 'free' and not pause_of(lock)
if not is_mine then
  local was = done({ lock }, tonumber(ARGV[8]))
  if was then
    tally(lock, { done = 1 })
    forget_turn(lock, token)
    return answer('done', told(was))
  end
  if string.find(ARGV[9], 'replaces', 1, true) then
    local came = us - waited * 1000
    local newest = superseded_by(lock, token, came)
    if newest then return answer('superseded', newest.owner) end
    local old = be_newest(lock, token, came, owner)
    if old then forget_turn(lock, old.token) end
    local hold = lock.kind == 'exclusive' and hold_of(lock, lock.token)
    if hold and hold.confirmed and is_replaced(hold, came) and not pause_of(lock) then
      hold.asked, hold.word = owner, 'superseded'
      save(lock, lock.token, hold)
    end
  end
  local others, refused
  ahead, others, refused = askers(lock, token, waited)
  local is_turn = ahead == 0 or refused and refused + FREE_FOR < ms
  is_mine = is_free and is_turn
  -- A caller that gets the lock at its first request leaves no entry.
  if ARGV[7] == 'queue' and others < ASKERS and (waited > 0 or not is_mine) then
    note_turn(lock, token, int(ms - waited) .. ':' .. int(ms))
  end
  if is_free and not is_turn and not refused then note_turn(lock, '#free', int(ms)) end
  if refused and lock.kind == 'exclusive' and hold_of(lock, lock.token).confirmed then forget_turn(lock, '#free') end
end
if not is_mine then
  if is_free then return answer('behind', int(ahead)) end
  return answer('busy', int(ahead), obstacle(lock))
end
if is_free then
  lock.kind, lock.token = 'exclusive', token
  lock.holds[token] = { phase = 'held', slot = '', cool = 0, confirmed = false, attempt = 0, waited = '0', owner = owner,
    asked = '', word = string.find(ARGV[9], 'stays', 1, true) and 'stays' or '' }
end
local hold = hold_of(lock, token)
if not hold.confirmed then
  hold.fence, hold.since = int(math.max(us, last_fence(lock) + 1)), int(us)
end
hold['until'] = ms + ttl
if hold.attempt then hold.attempt = math.max(hold.attempt, attempt) end
save(lock, token, hold)
return answer('granted', hold.fence)
