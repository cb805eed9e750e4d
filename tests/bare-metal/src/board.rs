//! The parts of the board (Arm MPS2 with a Cortex-M4, AN386) that the program uses.

use cortex_m::interrupt::InterruptNumber;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{NVIC, Peripherals};

const CLOCK: u32 = 25_000_000;

const UART: usize = 0x4000_4000;
const UART_DATA: usize = UART;
const UART_CTRL: usize = UART + 8;
const UART_BAUDDIV: usize = UART + 16;

/// A timer's base address.
#[derive(Clone, Copy)]
pub struct Timer(usize);

pub const SAMPLER: Timer = Timer(0x4000_0000);
pub const TRANSMITTER: Timer = Timer(0x4000_1000);

/// The interrupts, by number. The last two have no device: software pends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Irq {
    Sampler = 8,
    Transmitter = 9,
    Unplugged = 30,
    Button = 31,
}

const ALL: [Irq; 4] = [Irq::Sampler, Irq::Transmitter, Irq::Unplugged, Irq::Button];

impl Irq {
    pub fn from_number(number: i16) -> Option<Self> {
        ALL.into_iter().find(|&irq| i16::try_from(irq as u16) == Ok(number))
    }

    /// Pends the interrupt; it fires as soon as its priority allows.
    pub fn pend(self) {
        NVIC::pend(self);
    }
}

// Safety: the numbers are those of the board and do not change.
unsafe impl InterruptNumber for Irq {
    fn number(self) -> u16 {
        self as u16
    }
}

fn write(register: usize, value: u32) {
    // Safety: callers name registers of this board; writing them has no effect on memory.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(register).write_volatile(value) }
}

impl Timer {
    /// Interrupts `hertz` times a second.
    pub fn start(self, hertz: u32) {
        write(self.0 + 4, CLOCK / hertz); // VALUE
        write(self.0 + 8, CLOCK / hertz); // RELOAD
        write(self.0, 0b1001); // CTRL: interrupt, enabled
    }

    pub fn acknowledge(self) {
        write(self.0 + 12, 1);
    }
}

/// Transmits a byte. The emulated UART is never busy; [`TRANSMITTER`] paces it like a real one.
pub fn transmit(byte: u8) {
    write(UART_DATA, byte.into());
}

/// Starts the tick (1 kHz), the sampler, the transmitter (115,200 baud, ten bits a byte), and the
/// UART. The sampler may interrupt the tick, and both may interrupt everything else.
pub fn start() {
    let mut board = Peripherals::take().expect("the board is started once");
    write(UART_BAUDDIV, CLOCK / 115_200);
    write(UART_CTRL, 1); // transmit
    for irq in ALL {
        let priority = if irq == Irq::Sampler { 0x20 } else { 0x80 };
        // Safety: no critical section relies on priorities.
        unsafe {
            board.NVIC.set_priority(irq, priority);
            NVIC::unmask(irq);
        }
    }
    // Safety: as above.
    unsafe { board.SCB.set_priority(cortex_m::peripheral::scb::SystemHandler::SysTick, 0x40) };
    board.SYST.set_clock_source(SystClkSource::Core);
    board.SYST.set_reload(CLOCK / 1000 - 1);
    board.SYST.clear_current();
    board.SYST.enable_counter();
    board.SYST.enable_interrupt();
    SAMPLER.start(3300);
    TRANSMITTER.start(115_200 / 10);
}
