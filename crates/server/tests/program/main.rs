//! The whole program, as users run it. One test binary: some of these tests keep one core busy for minutes, beside which the others run.

mod demo;
mod doctor;
mod serve;
mod verify;
