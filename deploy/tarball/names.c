/*
 * Part of the static programs: resolves names by /etc/hosts and the DNS of /etc/resolv.conf,
 * whatever /etc/nsswitch.conf contains.
 *
 * A static program contains the C library, and with it these two methods. For every other word in
 * nsswitch.conf (resolve, myhostname, mdns4_minimal, systemd and so on) it would load a module of
 * the system, which is made for the system's C library. Except on the build machine, that is nearly
 * always another library, and the program would crash at its first look-up.
 */
#include <nss.h>

__attribute__((constructor)) static void flexfeed_names(void)
{
	__nss_configure_lookup("hosts", "files dns");
	/* PostgreSQL's default user name is that of the process's user. */
	__nss_configure_lookup("passwd", "files");
	__nss_configure_lookup("group", "files");
}
