//! How two kernels share the GPU.

use crate::profile::PairMode;

/// Who goes first on which SMs. A and B are as in [`PairMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// All SMs, equal priority, A first.
    Equal,
    /// All SMs; A, at high priority, comes while B runs.
    HpLater,
    /// All SMs; B comes while A, at high priority, runs.
    HpFirst,
    /// Each on SMs of its own.
    Separate,
    /// A on all SMs, at high priority; B, which comes later, on some of them.
    Confined,
}

impl Sharing {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All of them.
    pub const ALL: [Sharing; Sharing::COUNT] =
        [Sharing::Equal, Sharing::HpLater, Sharing::HpFirst, Sharing::Separate, Sharing::Confined];

    /// Position in [`Sharing::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// B runs first, and A comes later.
    pub fn b_first(self) -> bool {
        self == Sharing::HpLater
    }

    /// Blocks of the later one go before those of the first that have not started.
    pub fn preempts(self) -> bool {
        self == Sharing::HpLater
    }

    /// Name in tables and records.
    pub fn name(self) -> &'static str {
        match self {
            Sharing::Equal => "full_equal",
            Sharing::HpLater => "full_hp_high_running",
            Sharing::HpFirst => "full_hp_high_arriving",
            Sharing::Separate => "separate",
            Sharing::Confined => "confined",
        }
    }
}

impl From<PairMode> for Sharing {
    fn from(mode: PairMode) -> Self {
        match mode {
            PairMode::FullEqual => Sharing::Equal,
            PairMode::FullHpRunning => Sharing::HpLater,
            PairMode::FullHpArriving => Sharing::HpFirst,
            PairMode::Separate => Sharing::Separate,
            PairMode::Confined => Sharing::Confined,
        }
    }
}
