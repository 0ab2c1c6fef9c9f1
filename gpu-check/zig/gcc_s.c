// A stub of libgcc_s.so.1 with only the names of its C functions. The bundle is linked against this stub, so that
// exceptions are unwound by the same unwinder that the target machine's own C++ code uses. The code of the stub never
// runs, because every machine with a C++ program has the real library. The names and their versions are those of gcc's
// libgcc-std.ver and config/i386/libgcc-glibc.ver.

#define NAMED(name) void name(void) {}

NAMED(_Unwind_DeleteException)
NAMED(_Unwind_ForcedUnwind)
NAMED(_Unwind_GetDataRelBase)
NAMED(_Unwind_GetGR)
NAMED(_Unwind_GetIP)
NAMED(_Unwind_GetLanguageSpecificData)
NAMED(_Unwind_GetRegionStart)
NAMED(_Unwind_GetTextRelBase)
NAMED(_Unwind_RaiseException)
NAMED(_Unwind_Resume)
NAMED(_Unwind_SetGR)
NAMED(_Unwind_SetIP)
NAMED(_Unwind_Backtrace)
NAMED(_Unwind_FindEnclosingFunction)
NAMED(_Unwind_GetCFA)
NAMED(_Unwind_Resume_or_Rethrow)
NAMED(_Unwind_GetIPInfo)
