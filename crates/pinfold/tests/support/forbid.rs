//! System calls that this process may not make, as in a container.

/// From now on these system calls fail with `errno` in this thread, and in those that it starts.
pub(crate) fn forbid(calls: &[libc::c_long], errno: i32) {
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let load = u16::try_from(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS).unwrap();
    let is = u16::try_from(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K).unwrap();
    let ret = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap();
    let mut filter = vec![jump(load, 0, 0, 0)]; // the number of the call
    for call in calls {
        filter.push(jump(is, u32::try_from(*call).unwrap(), 0, 1));
        filter.push(jump(ret, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(), 0, 0));
    }
    filter.push(jump(ret, libc::SECCOMP_RET_ALLOW, 0, 0));
    let len = u16::try_from(filter.len()).unwrap();
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program is one of so many instructions.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
