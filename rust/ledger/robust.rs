//! Owner words that the kernel marks when their thread dies: a robust list of our own.
//!
//! glibc's robust mutexes are not used: their layout is glibc's, and differs between the containers that share a
//! ledger. Here both the word and the link are ours. One thread, the keeper, has the list; it alone may change it,
//! because the kernel walks it when that very thread dies.
//!
//! At every instruction a slot that is ours is either on the list or the list's `pending` entry, so death at any
//! instruction leaves nothing claimed. One gap is the kernel's, and too small to close: it knows us by TID only, so a
//! death in the few instructions between a lost compare-exchange and the reset of `pending` marks a slot that was won
//! in that instant by a thread with the same TID in another PID namespace.

use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

/// Bits of the word that hold the owner's TID.
pub(super) const TID_MASK: u32 = 0x3fff_ffff;
/// Set by the kernel at the owner's death, and by us while a slot is being claimed: the slot counts for nothing.
pub(super) const OWNER_DIED: u32 = 0x4000_0000;

/// The head of a slot.
#[repr(C)]
pub(super) struct Owner {
    word: AtomicU32,
    zero: AtomicU32,
    link: Link,
}

/// A link of the list. The kernel reads it; addresses are the owner process's and are never followed by us.
#[repr(transparent)]
struct Link(AtomicPtr<Link>);

const WORD_FROM_LINK: isize = -8;
const _: () = assert!(std::mem::offset_of!(Owner, link) == 8 && size_of::<Owner>() == 16);

impl Owner {
    /// The raw word.
    #[inline]
    pub fn word(&self) -> u32 {
        self.word.load(Acquire)
    }

    /// A living thread owns the slot and has finished claiming it.
    #[inline]
    pub fn is_live(&self) -> bool {
        let word = self.word();
        word & TID_MASK != 0 && word & OWNER_DIED == 0
    }

    /// What the kernel does at the owner's death.
    #[cfg(test)]
    pub fn die_for_test(&self) {
        self.word.store(OWNER_DIED, Release);
    }
}

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct Head {
    list: Link,
    word_from_link: isize,
    pending: AtomicPtr<Link>,
}

/// The robust list of the calling thread.
pub(super) struct RobustList {
    /// Never freed: the kernel reads it at the thread's death.
    head: &'static Head,
    tid: u32,
    /// What is on the list, newest first. The links hold the same, but shared memory is not to be trusted with it.
    held: Vec<*const Owner>,
}

impl RobustList {
    /// Replaces the calling thread's robust list by an empty one.
    pub fn install() -> std::io::Result<RobustList> {
        let head: &'static Head = Box::leak(Box::new(Head {
            list: Link(AtomicPtr::new(ptr::null_mut())),
            word_from_link: WORD_FROM_LINK,
            pending: AtomicPtr::new(ptr::null_mut()),
        }));
        head.list.0.store(ptr::from_ref(&head.list).cast_mut(), Relaxed);
        super::sys::set_robust_list(ptr::from_ref(head).cast(), size_of::<Head>())?;
        Ok(RobustList { head, tid: super::sys::tid(), held: Vec::with_capacity(8) })
    }

    /// Takes a slot whose word is `seen`, with no TID in it. It counts for nothing until [`RobustList::activate`].
    /// False: another was faster.
    ///
    /// # Safety
    /// `owner` must stay mapped until it is released or this thread is dead.
    pub unsafe fn acquire(&mut self, owner: &Owner, seen: u32) -> bool {
        // Before anything is written: a failed allocation must not find us half-way.
        self.held.reserve(1);
        kill_point();
        self.set_pending(Some(owner));
        kill_point();
        if owner.word.compare_exchange(seen, OWNER_DIED | self.tid, AcqRel, Relaxed).is_err() {
            self.set_pending(None);
            return false;
        }
        kill_point();
        owner.link.0.store(self.head.list.0.load(Relaxed), Relaxed);
        // The kernel sees this thread's writes in program order: only the compiler must be held back.
        compiler_fence(SeqCst);
        kill_point();
        self.head.list.0.store(ptr::from_ref(&owner.link).cast_mut(), Relaxed);
        kill_point();
        self.set_pending(None);
        self.held.insert(0, ptr::from_ref(owner));
        kill_point();
        true
    }

    /// Makes an acquired slot live.
    pub fn activate(&self, owner: &Owner) {
        owner.word.store(self.tid, Release);
    }

    /// Gives a slot back. False, and nothing done, if it is not ours.
    pub fn release(&mut self, owner: &Owner) -> bool {
        let Some(at) = self.held.iter().position(|held| ptr::eq(*held, owner)) else { return false };
        let next = match self.held.get(at + 1) {
            // SAFETY: `acquire`'s contract keeps every held slot mapped.
            Some(after) => ptr::from_ref(unsafe { &(**after).link }),
            None => ptr::from_ref(&self.head.list),
        };
        let before = match at.checked_sub(1).and_then(|i| self.held.get(i)) {
            // SAFETY: as above.
            Some(before) => unsafe { &(**before).link },
            None => &self.head.list,
        };
        kill_point();
        self.set_pending(Some(owner));
        kill_point();
        before.0.store(next.cast_mut(), Relaxed);
        compiler_fence(SeqCst);
        kill_point();
        owner.word.store(0, Release);
        kill_point();
        self.set_pending(None);
        self.held.remove(at);
        kill_point();
        true
    }

    fn set_pending(&self, owner: Option<&Owner>) {
        compiler_fence(SeqCst);
        let link = owner.map_or(ptr::null_mut(), |o| ptr::from_ref(&o.link).cast_mut());
        self.head.pending.store(link, Relaxed);
        compiler_fence(SeqCst);
    }
}

/// A place where a test may kill the process.
#[inline(always)]
pub(super) fn kill_point() {
    #[cfg(test)]
    super::tests::kill_point();
}
