-- What gateways have taken ahead for the rest of a tenth of a second and not accounted for yet: by the loan's id its tick
-- and its count, [1795219800123, 40]. It stands in the row that is locked, since whoever waited for the lock would not see
-- rows that a mate has added meanwhile. The ticks and the sum count a loan in full until it is given back.
ALTER TABLE rate_windows ADD COLUMN loans jsonb NOT NULL DEFAULT '{}';
