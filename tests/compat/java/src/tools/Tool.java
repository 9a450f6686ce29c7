import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the `main` of one of Kafka's tools within this process, one at a time, and keeps what it prints.
 *
 * The tools end by Kafka's own `Exit`, which takes another procedure. Each run has their classes
 * anew: ConsoleConsumer, for one, counts its messages in a static field.
 */
final class Tool {
    private static final String PACKAGE = "org.apache.kafka.tools.";
    private static final Redirected OUT = new Redirected();
    private static final Redirected ERR = new Redirected();
    private static final InputStream STDIN = System.in;
    private static final PrintStream STDERR = System.err;
    private static final List<Runnable> HOOKS = new CopyOnWriteArrayList<>();
    private static Integer firstCode; // tools that catch everything exit again, as from an error

    static {
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> ended(code));
        Exit.setHaltProcedure((code, message) -> ended(code));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
    }

    private static void ended(int code) {
        if (firstCode == null) {
            firstCode = code;
        }
        throw new Exited();
    }

    record Result(int code, String out, String err) {
        /** What it printed; its exit code must be 0. */
        String fine() {
            Checks.that(code == 0, "exit code " + code + ": " + out + err);
            return out;
        }

        String refused() {
            Checks.that(code != 0, "exit code 0: " + out + err);
            return out + err;
        }
    }

    static final class Exited extends Error {
        Exited() {
            super("Exit", null, false, false);
        }
    }

    /** A stream that whoever holds it for good writes through to the run of the moment. */
    private static final class Redirected extends OutputStream {
        volatile OutputStream to = STDERR;

        @Override
        public void write(int b) throws IOException {
            to.write(b);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            to.write(bytes, offset, length);
        }

        @Override
        public void flush() throws IOException {
            to.flush();
        }
    }

    /** Finds the tools' classes itself, and leaves all others to the loader above. */
    private static final class Fresh extends URLClassLoader {
        Fresh() throws IOException {
            super(new URL[] {jar()}, Tool.class.getClassLoader());
        }

        private static URL jar() throws IOException {
            String[] all = System.getProperty("java.class.path").split(":");
            return Path.of(Arrays.stream(all).filter(p -> p.contains("/kafka-tools-4")).findFirst()
                .orElseThrow()).toUri().toURL();
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                if (name.startsWith(PACKAGE) && findLoadedClass(name) == null) {
                    try {
                        return findClass(name);
                    } catch (ClassNotFoundException e) {
                        return super.loadClass(name, resolve);
                    }
                }
                return super.loadClass(name, resolve);
            }
        }
    }

    interface Main {
        void run(ClassLoader loader) throws Exception;
    }

    static Result run(String name, String... arguments) {
        return runWith("", name, arguments);
    }

    static Result runWith(String stdin, String name, String... arguments) {
        boolean full = name.startsWith("org.") || name.startsWith("kafka.");
        return captured(stdin, loader -> Class.forName(full ? name : PACKAGE + name, true, loader)
            .getMethod("main", String[].class).invoke(null, (Object) arguments));
    }

    /** VerifiableProducer and VerifiableConsumer: their `main` leaves `close` to a shutdown hook. */
    static Result verifiable(String name, String... arguments) {
        return captured("", loader -> {
            Class<?> kind = Class.forName(PACKAGE + name, true, loader);
            Method parser = kind.getDeclaredMethod("argParser");
            parser.setAccessible(true);
            Method create = Arrays.stream(kind.getMethods())
                .filter(m -> m.getName().equals("createFromArgs")).findFirst().orElseThrow();
            Method run = Arrays.stream(kind.getMethods())
                .filter(m -> m.getName().equals("run")).findFirst().orElseThrow();
            try (AutoCloseable tool =
                    (AutoCloseable) create.invoke(null, parser.invoke(null), arguments)) {
                run.invoke(tool, run.getParameterCount() == 0 ? new Object[0] : new Object[] {
                    new org.apache.kafka.server.util.ThroughputThrottler(-1, 0)});
            }
        });
    }

    private static synchronized Result captured(String stdin, Main main) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        firstCode = null;
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        OUT.to = out;
        ERR.to = err;
        System.setIn(new ByteArrayInputStream(stdin.getBytes(StandardCharsets.UTF_8)));
        try {
            Fresh loader = new Fresh(); // never closed: threads that a tool leaves may load from it
            thread.setContextClassLoader(loader);
            main.run(loader);
        } catch (InvocationTargetException e) {
            uncaught(e.getCause());
        } catch (Exception e) {
            uncaught(e);
        } finally {
            HOOKS.forEach(Runnable::run); // ConsoleProducer's last records go out in one
            HOOKS.clear();
            thread.setContextClassLoader(before);
            System.out.flush();
            System.err.flush();
            OUT.to = STDERR;
            ERR.to = STDERR;
            System.setIn(STDIN);
        }
        return new Result(firstCode == null ? 0 : firstCode, out.toString(StandardCharsets.UTF_8),
            err.toString(StandardCharsets.UTF_8));
    }

    private static void uncaught(Throwable thrown) {
        if (!(thrown instanceof Exited)) {
            thrown.printStackTrace();
            firstCode = 1;
        }
    }
}
